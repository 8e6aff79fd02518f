// What a person can do: each verb asks what it has to, sends one action, and says what came of it.
import { getJson, Refused } from "/static/api.js";
import { describe, enlarge } from "/static/details.js";
import { askMerge, askName } from "/static/dialogs.js";
import { $, images, number, say } from "/static/dom.js";
import { remaining } from "/static/grid.js";
import { askGrow } from "/static/grow.js";
import { awaited, base, looked, READ_ONLY } from "/static/presses.js";
import { neighbor, nextOpen } from "/static/side.js";
import { askSplit } from "/static/split.js";
import * as data from "/static/store.js";

const { store } = data;
const DONE = { confirm: "confirmed", reject: "rejected", flag: "flagged" };
const WHERE = { confirm: "as", reject: "from", flag: "in" };
const STATUS = { confirm: data.CONFIRMED, flag: data.FLAGGED };
const NOW = Promise.resolve(true); // the turn of what follows from a press that has its own

// Send an action. Of several images those that somebody has changed meanwhile are left out: resolves to how many it was
// done to, how many were left out, and what others did.
async function send(action, seen, left = 0) {
  try {
    await awaited(data.act(action, seen));
    return { n: (action.rows ?? []).length, left };
  } catch (error) {
    const changed = new Set(error.changed), rest = (action.rows ?? []).filter((row) => !changed.has(row));
    const n = (action.rows ?? []).length - rest.length;
    if (!rest.length || !n) throw error;
    return { others: error.others, ...(await send({ ...action, rows: rest }, seen, left + n)) };
  }
}

// What is said of images that were decided on, with the category they were in.
function done(kind, rows) {
  const [home, ...others] = new Set(rows.map((row) => store.category[row]));
  const one = home < 0 ? "" : ` ${WHERE[kind]} ${data.nameOf(home)}`;
  const where = others.length ? ` in ${number(others.length + 1)} categories` : one;
  return (n) => `${images(n)} ${DONE[kind]}${where}`;
}

// Of a name that differs from a category's in capitals or spaces alone.
function hintAlike(name, own = -1) {
  const there = data.namedAlike(name);
  return there && there.id !== own ? `${there.name} is there already, written otherwise. ` : "";
}

function leftOut(n, others) {
  const last = others.at(-1), more = others.length > 1 ? ` and ${number(others.length - 1)} before` : "";
  const why = last ? `${last.by}: ${last.words}${more}` : "look again";
  return `${images(n)} left out, changed by others meanwhile (${why}).`;
}

export function makeVerbs({ grid, view, go, refine }) {
  let recent = [];

  // Do something and say what came of it: `words` for so many images. Resolves to true, to
  // null where the server refuses it, since others have changed what it is about perhaps, or to false where it failed.
  async function does(action, words, seen = base()) {
    if (store.run.read_only) return say(READ_ONLY, true);
    const began = performance.now(), taken = grid.unselect(action.rows ?? []); // what is selected from now on stays so
    try {
      const { n, left, others } = await send(action, seen);
      document.body.dataset.took = (performance.now() - began).toFixed(1);
      if (left) say(`${words(n)}. ${leftOut(left, others)}`, true);
      else say(words(n));
      return true;
    } catch (error) {
      grid.select(remaining(taken, grid.rows), { adds: true });
      say(error.message, true);
      return error instanceof Refused ? null : false;
    }
  }

  // Undo or redo; what is decided about anew is then shown, a single image in focus.
  async function again(action, words) {
    const before = grid.rows, isDone = await does({ action }, () => words, store.seq);
    if (!isDone) return;
    const homes = new Set(Array.from(store.changed, (row) => store.category[row])), [home] = homes;
    const isElsewhere = view.kind === "category" && homes.size === 1 && home >= 0 && home !== view.id;
    const isGone = isElsewhere && !remaining(store.changed, before).size;
    if (isGone && !$("dialog").open) await go({ kind: "category", id: home });
    const place = store.changed.length === 1 ? grid.rows.indexOf(store.changed[0]) : -1;
    if (place >= 0) grid.go(place);
  }

  // Ask, and do what was answered; when the server refuses it ask again, with the answer as it was. Resolves to the
  // answer that was done.
  async function insist(turn, ask, act) {
    for (let now = turn, last; ; now = NOW) {
      const asked = ask(now, last), answer = (await now) && (await asked);
      if (!answer) return null;
      const isDone = await act(answer);
      if (isDone !== null) return isDone && answer;
      looked();
      last = answer;
    }
  }

  // On to the next image, where one that is decided has stayed in the list.
  function goOn(isDone, row) {
    if (!isDone || grid.focused !== row) return isDone;
    if (grid.focus + 1 < grid.rows.length) grid.go(grid.focus + 1);
    else say("", false, { follows: "It is the last image." });
    return true;
  }

  const chosen = () => (grid.selected.size ? grid.chosen : grid.focused >= 0 ? [grid.focused] : []);

  // Those of some images that have a category: the list itself, where all have.
  const hasCategory = (row) => store.category[row] >= 0;
  const inCategory = (rows) => (rows.every(hasCategory) ? rows : rows.filter(hasCategory));

  // Those of some images of which it is not so yet, and why there are none.
  const undone = (kind, rows) => {
    const isUndone = (row) => store.status[row] !== STATUS[kind];
    return rows.every(isUndone) ? rows : rows.filter(isUndone);
  };
  const sayWhy = (kind, rows, otherwise) =>
    (undone(kind, rows).length ? say(otherwise, true) : say(`They are ${DONE[kind]} already.`));

  // What the enlarged view does with the images of the grid.
  const viewing = {
    step(by, from) {
      const isNext = by > 0 && grid.focused !== from; // somebody took it out of the list: the next one is in its place
      grid.go(grid.focus + (isNext ? by - 1 : by));
      return grid.focused;
    },
    next: () => grid.rows[grid.focus + 1] ?? -1,
    keys: {
      c: (one) => verbs.decide("confirm", one),
      x: (one) => verbs.decide("reject", one),
      f: (one) => verbs.decide("flag", one),
      2: (one) => verbs.second(one).then((isDone) => goOn(isDone, one)),
      u: () => verbs.undo(), U: () => verbs.redo(),
    },
  };

  const verbs = {
    // An image enlarged: this one, or that in focus when its turn has come.
    async open(turn = NOW, row = grid.focused < 0 ? -1 : null) {
      if (row === -1) return;
      let asked = await enlarge(turn.then(() => row ?? grid.focused), viewing, turn);
      while (asked) {
        looked();
        if (asked.key === "l") return verbs.similar(asked.row);
        const isDone = await (asked.key === "m" ? verbs.move : verbs.create)(NOW, [asked.row]);
        goOn(isDone, asked.row);
        asked = await enlarge(isDone ? grid.focused : asked.row, viewing, NOW);
      }
    },
    // One image alone, whatever is selected; then the next one. Resolves to whether it is so now.
    async decide(kind, row) {
      if (kind !== "flag" && store.category[row] < 0) return say("It has no category: move it to one.", true);
      if (store.status[row] === STATUS[kind]) return say(`It is ${DONE[kind]} already.`), goOn(true, row);
      return goOn(await does({ action: kind, rows: [row] }, done(kind, [row])), row);
    },
    toConfirm: () => inCategory(undone("confirm", grid.chosen)),
    // A whole category at once; in a list across categories, where each is another question, the image in focus.
    async confirm() {
      const some = grid.chosen, isCategory = view.kind === "category", id = view.id;
      if (!some.length && !isCategory) return grid.focused >= 0 && verbs.decide("confirm", grid.focused);
      const shown = () => [...grid.rows].filter((row) => store.status[row] === data.PREDICTED);
      const rows = some.length ? verbs.toConfirm() : inCategory(shown());
      if (!rows.length && some.length) return sayWhy("confirm", some, "They have no category: move them to one.");
      const left = rows.length ? 0 : data.openOf(id);
      if (left) return say(`The filters hide ${images(left)} that nobody has decided on: clear them first.`, true);
      if (!rows.length) return verbs.next();
      const isDone = await does({ action: "confirm", rows }, done("confirm", rows));
      if (isDone && isCategory && view.id === id && !data.openOf(id) && !grid.selected.size) return verbs.next();
    },
    async reject() {
      if (!grid.selected.size) return grid.focused >= 0 && verbs.decide("reject", grid.focused);
      const rows = inCategory(grid.chosen);
      if (!rows.length) return say("They have no category to be rejected from.", true);
      await does({ action: "reject", rows }, done("reject", rows));
    },
    async flag() {
      if (!grid.selected.size) return grid.focused >= 0 && verbs.decide("flag", grid.focused);
      const some = grid.chosen, rows = undone("flag", some);
      if (!rows.length) return sayWhy("flag", some);
      await does({ action: "flag", rows }, done("flag", rows));
    },
    async move(turn = NOW, some = null) {
      if (!(some ?? chosen()).length) return;
      const quick = async () => {
        const found = await describe((some ?? chosen()).slice(0, 200));
        const names = new Set([...found.map((image) => image.given), ...found.map((image) => image.second), ...recent]);
        return [...names].filter((name) => data.named(name) && data.named(name).id !== view.id).slice(0, 6);
      };
      const isNew = "No category has this name: a new one will be made.";
      const comes = (name) => (data.named(name) ? `They go to ${name}.` : hintAlike(name) + isNew);
      const hint = (name) => (name ? comes(name) : "");
      const asked = askName(() => `Move ${images((some ?? chosen()).length)}`, { verb: "Move", hint, quick, turn });
      if (await turn) return verbs.put((some ??= chosen()), await asked);
    },
    async create(turn = NOW, some = null) {
      if (!(some ?? chosen()).length) return;
      const hint = (name) => (data.named(name) ? `${name} is there: they will be moved there.` : hintAlike(name));
      const title = () => `New category of ${images((some ?? chosen()).length)}`;
      const asked = askName(title, { verb: "Create", hint, turn });
      if (await turn) return verbs.put((some ??= chosen()), await asked);
    },
    async put(rows, name) {
      if (!name || !rows.length) return false;
      const there = data.named(name);
      const action = there ? { action: "assign", rows, category: there.id } : { action: "create", rows, name };
      const isDone = await does(action, (n) => `${images(n)} moved to ${name}`);
      if (isDone) recent = [name, ...recent.filter((old) => old !== name)].slice(0, 6);
      return isDone;
    },
    async second(row = grid.focused) {
      if (row < 0) return;
      const [image] = await describe([row]);
      const there = image && data.named(image.second);
      if (!there || there.id === store.category[row]) return say("There is no second choice.", true);
      return verbs.put([row], image.second);
    },
    async rename(turn = NOW) {
      if (view.kind !== "category") return;
      const id = view.id, own = data.nameOf(id);
      const both = (name) => `${name} is there already: the two would be merged.`;
      const alike = (name) => hintAlike(name, id) && `${hintAlike(name, id)}Write it so to merge the two.`;
      const hint = (name) => (name !== own && data.named(name) ? both(name) : alike(name));
      const asked = askName(() => `Rename ${own}`, { value: own, verb: "Rename", hint, turn });
      const name = (await turn) && (await asked);
      if (!name || name === own) return;
      if (data.named(name)) return looked(), verbs.merge(NOW, data.named(name).id);
      await does({ action: "rename", category: id, name }, () => `${own} is now ${name}`);
    },
    async merge(turn = NOW, other = null) {
      if (view.kind !== "category") return;
      const id = view.id;
      const asks = (turn, last = { other }) => data.isLiving(id) && askMerge(id, last, turn);
      const merge = await insist(turn, asks, ({ into, categories }) =>
        does({ action: "merge", into, categories }, () => `merged into ${data.nameOf(into)}`));
      if (merge) await go({ kind: "category", id: merge.into });
    },
    async split(turn = NOW) {
      if (view.kind !== "category") return;
      if (data.sizeOf(view.id) < 2) return say("One image cannot be split.", true);
      const id = view.id;
      const asks = (turn, last) => data.isLiving(id) && askSplit(id, turn, last);
      const split = await insist(turn, asks, ({ parts }) =>
        does({ action: "split", category: id, parts }, () => `split into ${parts.length + 1}`));
      const rows = split?.confirms ?? [];
      if (rows.length) await does({ action: "confirm", rows }, done("confirm", rows));
    },
    // The answers stay, whatever others do meanwhile: what they changed is left out.
    async grow(turn = NOW) {
      if (view.kind !== "category") return;
      const id = view.id, asked = askGrow(id, turn), rows = (await turn) && (await asked);
      const grow = { action: "assign", category: id, rows, via: "grow" };
      if (rows) await does(grow, (n) => `${images(n)} moved to ${data.nameOf(id)}`);
    },
    async similar(row = grid.focused, show = go) {
      if (row < 0) return;
      try {
        await show({ kind: "similar", row, rows: getJson("/api/similar", { row }).then((found) => found.rows) });
      } catch (error) {
        say(error.message, true);
      }
    },
    undo: () => again("undo", `undone: ${store.undo}`),
    redo: () => again("redo", `redone: ${store.redo}`),
    next() {
      const id = nextOpen(view.id);
      if (id !== null) return go({ kind: "category", id });
      const isAll = data.living().every((category) => !data.openOf(category.id));
      const others = "Every category with this name is decided, others are not: see “Find a category”.";
      const all = "Every category is decided. Next: `shoal export` writes it for other programs, and "
        + "`shoal discover --review` goes on from it.";
      return say(isAll ? all : others, false, { stays: isAll });
    },
    step(by) {
      const id = neighbor(view.id, by);
      return id === null ? null : go({ kind: "category", id });
    },
    all: () => grid.select(grid.rows),
    none: () => grid.select([]),
    order() {
      return $("order").disabled ? null : refine({ rows: null, order: view.order === "least" ? "most" : "least" });
    },
  };

  return { does, verbs };
}
