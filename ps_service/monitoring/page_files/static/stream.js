// The connection to the owner that serves the page, and what is known of it: loading, live, stale, lost.

const STALE_MS = 4000;
const AGAIN_MS = 3000;

export class Stream {
  constructor(take, tell) {
    this.take = take;
    this.tell = tell;
    this.state = "loading";
    this.since = Date.now();
    this.heard = 0; // when the last message came
    this.paused = false;
    this.#open();
    setInterval(() => this.#look(), 500);
  }

  #open() {
    this.source?.close();
    this.source = new EventSource("/messages");
    this.source.onmessage = (event) => {
      this.heard = Date.now();
      this.take(JSON.parse(event.data));
      this.#become("live");
    };
    this.source.onerror = () => {
      this.#become(this.heard ? "lost" : "refused");
      // The browser tries again by itself, unless the answer was an error.
      if (this.source.readyState === EventSource.CLOSED) this.again ??= setTimeout(() => this.#tryAgain(), AGAIN_MS);
    };
  }

  #tryAgain() {
    this.again = undefined;
    this.#open();
  }

  #look() {
    if (this.state === "live" && Date.now() - this.heard > STALE_MS) this.#become("stale");
    else if (this.state !== "live") this.tell(this);
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    this.since = Date.now();
    this.tell(this);
  }
}
