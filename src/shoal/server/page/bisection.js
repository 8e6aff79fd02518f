// Where ranked candidates stop belonging: which question comes next, and what an answer says. Nothing is drawn here.
export const SHOWN = 12;

// The first `low` of `n` candidates belong, the first `high` do not all: n + 1 as long as nobody has said no.
export const begun = (n) => ({ n, low: 0, high: n + 1, step: SHOWN });

export const isOver = ({ low, high }) => high - low <= 1;

// Of how many it is asked next whether all belong; steps grow until the first no, then halve.
export const nextOf = ({ n, low, high, step }) =>
  (high > n ? Math.min(low + step, n) : low + Math.ceil((high - low) / 2));

export const answered = (search, isYes) =>
  ({ ...search, ...(isYes ? { low: nextOf(search), step: 2 * search.step } : { high: nextOf(search) }) });
