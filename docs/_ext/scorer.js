// A search puts short answers first, then pages that say how to do something, and what explains the code last.
const OFFSETS = { faq: 5, api: -4, architecture: -4, format: -4 };
var Scorer = {
  score: ([docname, title, anchor, descr, score]) =>
    score + (docname.startsWith("decisions/") ? -20 : (OFFSETS[docname] ?? 0)),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
