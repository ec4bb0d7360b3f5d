// What the search of the site puts first: pages for users before lists and histories with the same words.
// The numbers below `score` are those of Sphinx, whose script declares the same variable.

var Scorer = {
  score: ([page, _title, _anchor, _text, score]) => {
    if (/^(CHANGELOG|benchmarks\/|docs\/(architecture|modules|torch-functions)$)/.test(page)) return score - 6;
    if (/^(README$|docs\/(guide\/)?[^/]+$)/.test(page)) return score + 12;
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
