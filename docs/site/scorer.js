// What the search of the site puts first: pages of the guide before lists and histories with the same words.
// The numbers below `score` are those of Sphinx.

const Scorer = {
  score: ([page, _title, _anchor, _text, score]) => {
    if (/^(README|docs\/guide\/)/.test(page)) return score + 12;
    if (/^(CHANGELOG|benchmarks\/|docs\/architecture|docs\/modules)/.test(page)) return score - 6;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
