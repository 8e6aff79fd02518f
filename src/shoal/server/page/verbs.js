// The commands of the page: each asks what it needs, sends one action and shows the outcome.
import { getJson, Refused } from "/static/api.js";
import { describe, enlarge } from "/static/details.js";
import { askBranch, askCut, askMerge, askName, askTarget, canBeOne, inRank } from "/static/dialogs.js";
import { $, images, number, notify } from "/static/dom.js";
import { remaining } from "/static/grid.js";
import { askGrow } from "/static/grow.js";
import { awaited, base, looked, READ_ONLY } from "/static/presses.js";
import { neighbor, nextOpen } from "/static/side.js";
import { askSplit } from "/static/split.js";
import * as data from "/static/store.js";
import { chosenCategories, cutHere } from "/static/tree.js";

const { store } = data;
const DONE = { confirm: "confirmed", reject: "rejected", flag: "flagged" };
const WHERE = { confirm: "as", reject: "from", flag: "in" };
const REVERSE = { least: "most", most: "least", oldest: "newest", newest: "oldest" };
const STATUS = { confirm: data.CONFIRMED, flag: data.FLAGGED };
const MOST_DESCRIBED = 200, MOST_RECENT = 6, MOST_NAMED = 3;
const NOW = Promise.resolve(true); // the turn of what follows from a press that has its oldName

// Send an action. Images that somebody else changed in the meantime are skipped. Resolves to the number of images
// changed, the number skipped, and what others did.
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

// The message about images that were decided, with the category they were in.
function done(kind, rows) {
  const { category, sizes } = store, isHome = new Uint8Array(sizes.length);
  for (const row of rows) isHome[category[row] + 1] = 1;
  const homes = isHome.reduce((n, is) => n + is, 0), home = isHome.indexOf(1) - 1;
  const one = home < 0 ? "" : ` ${WHERE[kind]} ${data.nameOf(home)}`;
  const where = homes > 1 ? ` in ${number(homes)} categories` : one;
  return (n) => `${images(n)} ${DONE[kind]}${where}`;
}

function leftOut(n, others) {
  const last = others.at(-1), more = others.length > 1 ? ` and ${number(others.length - 1)} before` : "";
  const why = last ? `${last.by}: ${last.words}${more}` : "check them and try again";
  return `${images(n)} skipped because others have changed them (${why}).`;
}

export function makeVerbs({ grid, view, go, refine }) {
  let recent = []; // categories that images were moved to last
  let mergedAway = data.NONE; // the category that was shown when it was merged into another

  // Send an action and show the outcome: `words` gives the message for a number of images. Resolves to true, to null if
  // the server refuses it, perhaps because others changed its images, or to false if it failed.
  async function does(action, words, seen = base()) {
    if (store.run.read_only) return notify(READ_ONLY, true);
    const began = performance.now(), taken = grid.unselect(action.rows ?? []); // keep what is selected from now on
    try {
      const { n, left, others } = await send(action, seen);
      document.body.dataset.took = (performance.now() - began).toFixed(1);
      if (left) notify(`${words(n)}. ${leftOut(left, others)}`, true);
      else notify(words(n));
      return true;
    } catch (error) {
      grid.select(remaining(taken, grid.rows), { adds: true });
      notify(error.message, true);
      return error instanceof Refused ? null : false;
    }
  }

  // Undo or redo, then show the affected images; a single one gets the focus.
  async function undoOrRedo(action, words) {
    const before = grid.rows, isGoneBefore = !data.isLiving(mergedAway);
    const isDone = await does({ action }, () => words, store.seq);
    if (!isDone) return;
    if (isGoneBefore && data.isLiving(mergedAway)) return go({ kind: "category", id: mergedAway });
    const home = store.category[store.changed[0]] ?? data.NONE;
    const isElsewhere = view.kind === "category" && home >= 0 && home !== view.id
      && store.changed.every((row) => store.category[row] === home);
    const isGone = isElsewhere && !remaining(store.changed, before).size;
    if (isGone && !$("dialog").open) await go({ kind: "category", id: home });
    const place = store.changed.length === 1 ? grid.rows.indexOf(store.changed[0]) : -1;
    if (place >= 0) grid.go(place);
  }

  // Open a dialog and send its answer; if the server refuses it, open the dialog again with the same answer. Resolves
  // to the answer that was accepted.
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

  // Go to the next image if the decided one is still in the list.
  function goToNext(isDone, row) {
    if (!isDone || grid.focused !== row) return isDone;
    if (grid.focus + 1 < grid.rows.length) grid.go(grid.focus + 1);
    else notify("", false, { follows: "This is the last image." });
    return true;
  }

  // Likely categories of some images: their labels, those that images near them are in, and the last ones chosen.
  async function likelyTargets(rows) {
    const some = rows.slice(0, MOST_DESCRIBED);
    const [found, near] = await Promise.all([describe(some), getJson("/api/targets", { rows: some.join(",") })]);
    const given = found.map((image) => data.named(image.given)?.id ?? data.NONE);
    return [...new Set([...given, ...near, ...recent])].filter(data.isLiving);
  }

  // The category that is shown, or those below the branch that is selected in the tree.
  const current = () => {
    if (view.kind === "tree") return chosenCategories();
    return view.kind === "category" ? [view.id] : [];
  };

  const chosen = () => (grid.selected.size ? grid.chosen : grid.focused >= 0 ? [grid.focused] : []);

  // The images that have a category; the same list if all do.
  const hasCategory = (row) => store.category[row] >= 0;
  const inCategory = (rows) => (rows.every(hasCategory) ? rows : rows.filter(hasCategory));

  // The images that do not have the status yet, and the message if there are none.
  const undone = (kind, rows) => {
    const { status } = store, wanted = STATUS[kind], isUndone = (row) => status[row] !== wanted;
    return rows.every(isUndone) ? rows : rows.filter(isUndone);
  };
  const notifyWhy = (kind, rows, otherwise) =>
    (undone(kind, rows).length ? notify(otherwise, true) : notify(`They are already ${DONE[kind]}.`));

  // How the enlarged view steps through the grid and decides about its images.
  const MAX_NOTE = 1000;
  // `now` is the present note; null if images have different ones, which a new note replaces.
  const askNote = (turn, about, now, what) => insist(
    turn,
    (turn, value = { text: now ?? "" }) => askName(() => `Note on ${about}`, {
      value: value.text, verb: now === null ? "Replace" : "Save", label: "Note", maxLength: MAX_NOTE, required: now === null, turn,
      hint: () => `Words such as #blurred are tags.${now === null ? " This replaces all notes that these images have." : ""}`,
    }).then((text) => (text === null ? null : { text })),
    ({ text }) => does({ action: "note", ...what, text }, () => (text ? `noted on ${about}` : `note on ${about} removed`)),
  );

  const viewing = {
    step(by, from) {
      const isNext = by > 0 && grid.focused !== from; // somebody removed it: the next one has its position
      grid.go(grid.focus + (isNext ? by - 1 : by));
      return grid.focused;
    },
    next: () => grid.rows[grid.focus + 1] ?? -1,
    keys: {
      c: (one) => verbs.decide("confirm", one),
      x: (one) => verbs.decide("reject", one),
      f: (one) => verbs.decide("flag", one),
      2: (one) => verbs.second(one).then((isDone) => goToNext(isDone, one)),
      u: () => verbs.undo(), U: () => verbs.redo(),
    },
  };

  const verbs = {
    // Enlarge this image, or the one in focus when the key press is processed.
    async open(turn = NOW, row = grid.focused < 0 ? -1 : null) {
      if (row === -1) return;
      let asked = await enlarge(turn.then(() => row ?? grid.focused), viewing, turn);
      while (asked) {
        looked();
        if (asked.key === "l") return verbs.similar(asked.row);
        const isDone = await (asked.key === "m" ? verbs.move : verbs.create)(NOW, [asked.row]);
        goToNext(isDone, asked.row);
        asked = await enlarge(isDone ? grid.focused : asked.row, viewing, NOW);
      }
    },
    // Decide about one image, whatever is selected, then go to the next. Resolves to whether it has the status now.
    async decide(kind, row) {
      if (kind !== "flag" && store.category[row] < 0) return notify("The image has no category: move it to one.", true);
      if (store.status[row] === STATUS[kind]) return notify(`It is already ${DONE[kind]}.`), goToNext(true, row);
      return goToNext(await does({ action: kind, rows: [row] }, done(kind, [row])), row);
    },
    toConfirm: () => inCategory(undone("confirm", grid.chosen)),
    // Confirm a whole category; in a list across categories, only the image in focus.
    async confirm() {
      const some = grid.chosen, isCategory = view.kind === "category", id = view.id;
      if (!some.length && !isCategory) return grid.focused >= 0 && verbs.decide("confirm", grid.focused);
      const shown = () => [...grid.rows].filter((row) => store.status[row] === data.PREDICTED);
      const rows = some.length ? verbs.toConfirm() : inCategory(shown());
      if (!rows.length && some.length) return notifyWhy("confirm", some, "They have no category: move them to one.");
      const left = rows.length ? 0 : data.openOf(id);
      if (left) return notify(`The filters hide ${images(left)} that are undecided: clear the filters first.`, true);
      if (!rows.length) return verbs.next();
      const isDone = await does({ action: "confirm", rows }, done("confirm", rows));
      if (isDone && isCategory && view.id === id && !data.openOf(id) && !grid.selected.size) return verbs.next();
    },
    async reject() {
      if (!grid.selected.size) return grid.focused >= 0 && verbs.decide("reject", grid.focused);
      const rows = inCategory(grid.chosen);
      if (!rows.length) return notify("They have no category to be rejected from.", true);
      await does({ action: "reject", rows }, done("reject", rows));
    },
    async flag() {
      if (!grid.selected.size) return grid.focused >= 0 && verbs.decide("flag", grid.focused);
      const some = grid.chosen, rows = undone("flag", some);
      if (!rows.length) return notifyWhy("flag", some);
      await does({ action: "flag", rows }, done("flag", rows));
    },
    async move(turn = NOW, some = null) {
      if (!(some ?? chosen()).length) return;
      const isOffered = (id) => (some ?? chosen()).some((row) => store.category[row] !== id);
      const suggest = () => likelyTargets(some ?? chosen());
      const asked = askTarget(() => `Move ${images((some ?? chosen()).length)}`, { suggest, isOffered, turn });
      if (await turn) return verbs.put((some ??= chosen()), await asked);
    },
    async create(turn = NOW, some = null) {
      if (!(some ?? chosen()).length) return;
      const title = () => `New category from ${images((some ?? chosen()).length)}`;
      const refusal = (name) => data.named(name) && `${data.named(name).name} exists: move the images there (m).`;
      const asked = askName(title, { verb: "Create", refusal, turn });
      if (!(await turn)) return false;
      some ??= chosen();
      const name = await asked;
      return name ? verbs.put(some, { name }) : false;
    },
    // Move images to a category, or to a new one of this name.
    async put(rows, target) {
      if (!target || !rows.length) return false;
      const { id, name } = target;
      const action = name ? { action: "create", rows, name } : { action: "assign", rows, category: id };
      const isDone = await does(action, (n) => `${images(n)} moved to ${name ?? data.nameOf(id)}`);
      const there = id ?? data.named(name)?.id;
      if (isDone) recent = [there, ...recent.filter((old) => old !== there)].slice(0, MOST_RECENT);
      return isDone;
    },
    async second(row = grid.focused) {
      if (row < 0) return;
      const [image] = await describe([row]);
      const there = image && data.named(image.second);
      if (!there || there.id === store.category[row]) return notify("There is no second choice.", true);
      return verbs.put([row], { id: there.id });
    },
    async rename(turn = NOW) {
      const [id, ...others] = current();
      if (id === undefined) return;
      if (others.length) return verbs.renameAll(turn, [id, ...others]);
      const oldName = data.nameOf(id);
      const other = (name) => (data.named(name)?.id === id ? undefined : data.named(name));
      const hint = (name) => (other(name) ? `${other(name).name} exists: the two categories will be merged.` : "");
      const asks = (turn, value = oldName) => askName(() => `Rename ${oldName}`, { value, verb: "Rename", hint, turn });
      const name = await insist(turn, asks, (name) => {
        if (name === oldName || other(name)) return true;
        return does({ action: "rename", category: id, name }, () => `${oldName} is now ${name}`);
      });
      if (name && other(name)) return looked(), verbs.merge(NOW, other(name).id);
    },
    // Name the categories of a branch that nobody has named yet: the name and a number.
    async renameAll(turn, ids) {
      const left = ids.filter((id) => store.categories.get(id).novel && !store.categories.get(id).named);
      if (!left.length) return notify("All of these categories have names.", true);
      const namesFor = (name) => {
        const free = function* () {
          for (let at = 1; ; at++) if (!data.named(`${name} ${at}`)) yield `${name} ${at}`;
        }();
        return left.map(() => free.next().value);
      };
      const n = ids.length - left.length, others = n ? ` ${number(n)} with a name keep it.` : "";
      const hint = (name) => {
        const some = namesFor(name).slice(0, MOST_NAMED).map((one, at) => `${data.nameOf(left[at])} → ${one}`).join(", ");
        return name && `${some}${left.length > MOST_NAMED ? ", …" : ""}.${others}`;
      };
      const name = await askName(() => `Name ${number(left.length)} categories`, { verb: "Name", hint, turn });
      if (!name || !(await turn)) return;
      const actions = namesFor(name).map((one, at) => ({ action: "rename", category: left[at], name: one }));
      await does({ action: "batch", actions }, () => `${number(left.length)} categories named ${name}`);
    },
    // A note on the selected images, or on the one in focus.
    async note(turn = NOW) {
      const rows = chosen();
      if (!rows.length) return;
      const described = await describe(rows.slice(0, MOST_DESCRIBED)), notes = new Set(described.map(({ note }) => note));
      const areSame = notes.size === 1 && rows.length <= MOST_DESCRIBED, now = areSame ? described[0].note : null;
      await askNote(turn, images(rows.length), now, { category: data.NONE, rows });
    },
    async noteCategory(turn = NOW) {
      const { id, name, note } = store.categories.get(view.id);
      await askNote(turn, name, note, { category: id, rows: [] });
    },
    async merge(turn = NOW, other = null) {
      const [id, ...others] = current();
      if (id === undefined) return;
      if (others.length) return verbs.mergeAll(turn, [id, ...others]);
      const suggest = () => likelyTargets(data.typicalOf(id, MOST_DESCRIBED));
      const asks = (turn, last = { other }) => data.isLiving(id) && askMerge(id, last, { suggest, turn });
      const merge = await insist(turn, asks, ({ into, categories }) =>
        does({ action: "merge", into, categories }, () => `merged into ${data.nameOf(into)}`));
      if (merge && merge.into !== id) mergedAway = id;
      if (merge) await go({ kind: "category", id: merge.into });
    },
    // Merge the categories of a branch into one of them.
    async mergeAll(turn, ids) {
      const into = await askBranch(ids, { turn });
      if (into === null || !(await turn)) return;
      const categories = ids.filter((id) => id !== into);
      await does({ action: "merge", into, categories }, () => `${number(ids.length)} categories merged into ${data.nameOf(into)}`);
    },
    // Cut the tree as low as the selected branch: branches that are as low become one category each.
    async cut(turn = NOW) {
      if (view.kind !== "tree" || current().length < 2) return;
      const { height, branches } = cutHere(canBeOne), merged = branches.map(inRank);
      if (!merged.length) return notify("All categories this low are known, named or marked as different: merge them (j).", true);
      if (!(await askCut(height, merged, { turn })) || !(await turn)) return;
      const actions = merged.map(([into, ...categories]) => ({ action: "merge", into, categories }));
      await does({ action: "batch", actions }, () => `tree cut at ${height.toFixed(2)}`);
    },
    async split(turn = NOW) {
      const [id, ...others] = current();
      if (id === undefined || others.length) return;
      if (data.sizeOf(id) < 2) return notify("A category with one image cannot be split.", true);
      const asks = (turn, last) => data.isLiving(id) && askSplit(id, turn, last);
      const split = await insist(turn, asks, ({ parts }) =>
        (parts.length ? does({ action: "split", category: id, parts }, () => `split into ${parts.length + 1}`) : true));
      for (const { rows, id } of split?.moves ?? []) await verbs.put(rows, { id });
      const rows = split?.confirms ?? [];
      if (rows.length) await does({ action: "confirm", rows }, done("confirm", rows));
    },
    // The decisions hold even if others change images in the meantime: those images are skipped.
    async grow(turn = NOW) {
      if (view.kind !== "category") return;
      const category = view.id;
      const decide = async (accepted, refused) => {
        const name = data.nameOf(category), moves = { action: "assign", category, rows: accepted };
        const refuses = { action: "refuse", category, rows: refused };
        if (accepted.length && !(await does(moves, (n) => `${images(n)} moved to ${name}`))) return false;
        return !refused.length || does(refuses, (n) => `${images(accepted.length)} moved to ${name}, ${number(n)} refused`);
      };
      const asked = askGrow(category, turn, decide);
      if (await turn) await asked;
    },
    async similar(row = grid.focused, show = go) {
      if (row < 0) return;
      try {
        await show({ kind: "similar", row, ...data.withSimilarity("/api/similar", { row }) });
      } catch (error) {
        notify(error.message, true);
      }
    },
    undo: () => undoOrRedo("undo", `undone: ${store.undo}`),
    redo: () => undoOrRedo("redo", `redone: ${store.redo}`),
    next() {
      const id = nextOpen(view.id);
      if (id !== null) return go({ kind: "category", id });
      const decided = "Every category is decided. Next: `shoal export` writes the result for other programs, "
        + "`shoal discover --review` starts a new run from it.";
      return notify(decided, false, { stays: true });
    },
    step(by) {
      const id = neighbor(view.id, by);
      return id === null ? null : go({ kind: "category", id });
    },
    all: () => grid.select(grid.rows),
    none: () => grid.select([]),
    order() {
      return $("order").disabled ? null : refine({ rows: null, order: REVERSE[view.order] });
    },
  };

  return { does, verbs };
}
