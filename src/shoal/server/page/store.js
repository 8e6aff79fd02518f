// The data of the page: columns of all images, the categories, and which images a view shows.
import { getBytes, getJson, inTurn, introduce, isHere, pack, post, Refused, unpack, who } from "/static/api.js";

export const PREDICTED = 0, CONFIRMED = 1, REJECTED = 2, MOVED = 3, FLAGGED = 4;
export const NONE = -1;

export const store = {
  run: null, seq: 0, n: 0,
  theirs: 0, // the last action that was not done here
  order: null, dated: null, category: null, given: null, expected: null, status: null, confidence: null,
  categories: new Map(), sizes: [], open: [], sure: [], typical: new Map(),
  changed: [], // images changed by the last response
  counts: [0, 0, 0, 0, 0], entries: [], undo: "", redo: "",
  labeled: 0, // undecided images that came with a label
  distinct: [], // pairs of categories that are marked as different
};

const listeners = [];
export const onChange = (listener) => listeners.push(listener);
export const offChange = (listener) => listeners.includes(listener) && listeners.splice(listeners.indexOf(listener), 1);
const emit = (what) => [...listeners].forEach((listener) => listener(what));

export async function load(by) {
  introduce({ by });
  const [run, bytes] = await Promise.all([getJson("/api/run", by ? { by } : {}), getBytes("/api/columns")]);
  introduce({ csrf: run.csrf, by: by || run.who });
  const n = run.n_images;
  const seq = Math.min(run.seq, new DataView(bytes).getUint32(0, true)); // what happened between the two requests is sent again
  const at = (column) => 4 + 4 * n * column;
  Object.assign(store, {
    run, n, seq, undo: run.undo, redo: run.redo, entries: run.entries, distinct: run.distinct,
    order: new Uint32Array(bytes, at(0), n),
    category: new Int32Array(bytes, at(1), n),
    given: new Int32Array(bytes, at(2), n),
    expected: new Int32Array(bytes, at(3), n),
    status: new Uint8Array(bytes, at(4), n),
    confidence: new Uint8Array(bytes, at(4) + n, n),
    categories: new Map(run.categories.map((category) => [category.id, category])),
  });
  count();
}

// Continue under another name: other actions can be undone then.
export async function rename(by) {
  introduce({ by });
  waiting?.abort(); // it asks for whom it was
  const { undo, redo } = await getJson("/api/run", who());
  Object.assign(store, { undo, redo });
}

function count() {
  const most = Math.max(0, ...store.categories.keys()) + 2;
  const [sizes, open, sure] = [new Int32Array(most), new Int32Array(most), new Float64Array(most)];
  const counts = [0, 0, 0, 0, 0];
  const { n, category, given, status, confidence } = store;
  let labeled = 0;
  for (let row = 0; row < n; row++) {
    const place = category[row] + 1;
    sizes[place]++;
    if (status[row] === PREDICTED) {
      open[place]++;
      if (given[row] >= 0) labeled++;
    }
    sure[place] += confidence[row];
    counts[status[row]]++;
  }
  Object.assign(store, { sizes, open, sure, counts, labeled, typical: new Map() });
}

export const areApart = (a, b) => store.distinct.some((pair) => pair.includes(a) && pair.includes(b));
export const sizeOf = (id) => store.sizes[id + 1] ?? 0;
export const openOf = (id) => store.open[id + 1] ?? 0;
export const confidenceOfCategory = (id) => (sizeOf(id) ? store.sure[id + 1] / sizeOf(id) / store.run.confidence_scale : 0);
export const confidenceOf = (row) => store.confidence[row] / store.run.confidence_scale;
export const nameOf = (id) => store.categories.get(id)?.name ?? "no category";
export const living = () => [...store.categories.values()].filter((category) => category.into === null);
export const isLiving = (id) => store.categories.get(id)?.into === null;

// Names that differ only in case, spaces, hyphens or underscores are the same.
export const folded = (name) => name.normalize("NFKC").toLowerCase().replace(/[\s_-]+/g, " ").trim();
export const named = (name) =>
  living().find((category) => category.name === name)
  ?? living().find((category) => folded(category.name) === folded(name));

// Categories whose name contains a text: the same name first, then those that begin with the text.
export function matching(text) {
  const wanted = folded(text);
  const rank = (name) => Number(name !== wanted) + Number(!name.startsWith(wanted));
  const ranks = new Map();
  for (const { id, name } of living()) if (folded(name).includes(wanted)) ranks.set(id, rank(folded(name)));
  return [...ranks.keys()].sort((a, b) => ranks.get(a) - ranks.get(b) || compareNames(a, b));
}
const compareNames = (a, b) => nameOf(a).localeCompare(nameOf(b), undefined, { numeric: true });

// The category itself, or the one it was merged into.
export function current(id) {
  while (id >= 0 && store.categories.get(id)?.into != null) id = store.categories.get(id).into;
  return id;
}

// The current category of the label that an image was given.
export const givenOf = (row) => current(store.given[row]);

export const isSuspicious = (row) =>
  store.given[row] >= 0 && store.status[row] === PREDICTED && givenOf(row) !== current(store.expected[row]);
// The category that the neighbors of a labeled image suggest.
export const expectedOf = (row) => nameOf(current(store.expected[row]));
// How certain it is that a suspicious label is wrong.
const doubtOf = (row) =>
  store.category[row] === givenOf(row) ? store.run.confidence_scale - store.confidence[row] : store.confidence[row];
export const isUncertain = (row) =>
  store.status[row] === FLAGGED || (store.status[row] === PREDICTED && confidenceOf(row) < store.run.uncertain_below);

// The most typical images of a category.
export function typicalOf(id, most = 12) {
  const known = store.typical.get(id);
  if (known && known.most >= most) return known.rows.slice(0, most);
  const rows = [];
  for (let place = 0; place < store.n && rows.length < most; place++) {
    if (store.category[store.order[place]] === id) rows.push(store.order[place]);
  }
  store.typical.set(id, { most, rows });
  return rows;
}

export function typicalOfMany(ids, most) {
  const wanted = new Map(ids.filter((id) => !store.typical.has(id)).map((id) => [id, []]));
  let left = wanted.size;
  for (let place = 0; place < store.n && left; place++) {
    const rows = wanted.get(store.category[store.order[place]]);
    if (rows && rows.length < most && rows.push(store.order[place]) === most) left--;
  }
  for (const [id, rows] of wanted) store.typical.set(id, { most, rows });
}

// Which images have a text in their path: a 1 for each.
export async function withPath(text) {
  const found = new Uint8Array(store.n);
  for (const row of await getJson("/api/paths", { text })) found[row] = 1;
  return found;
}

// Images that the server finds, in its order, with their similarity: two promises.
export function withSimilarity(path, words) {
  const asked = getJson(path, words);
  return {
    rows: asked.then((found) => found.rows),
    similarity: asked.then((found) => new Map(found.rows.map((row, at) => [row, found.similarity[at]]))),
  };
}

// When the images were taken, and their rows in both orders; requested once.
let dated = null;
export const isByDate = (order) => ["oldest", "newest"].includes(order);
export const dateOf = (row) => store.dated?.dates[row] ?? "";
export function withDates() {
  dated ??= getJson("/api/dates").then((found) => (store.dated = found)).catch((error) => {
    dated = null;
    throw error;
  });
  return dated;
}

// Rows of a view, in the order it wants.
export function rowsOf(view) {
  const { n, order, category, status, confidence } = store;
  const low = view.low * store.run.confidence_scale, high = view.high * store.run.confidence_scale;
  const fits = (row) =>
    (view.status === "" || status[row] === view.status) && confidence[row] >= low && confidence[row] <= high
    && (!view.found || view.found[row] === 1);
  if (view.rows) return Uint32Array.from(view.rows.filter(fits));
  const tests = {
    all: () => true,
    uncertain: isUncertain,
    none: (row) => category[row] === NONE,
    labels: isSuspicious,
    branch: (row) => branch.has(category[row]),
  };
  const branch = new Set(view.ids.map(current));
  const shows = tests[view.kind] ?? (() => true), isLeast = view.order === "least", id = view.id;
  const places = isByDate(view.order) ? store.dated[view.order] : order;
  const isCategory = view.kind === "category";
  const rows = new Uint32Array(n);
  let length = 0;
  for (let place = 0; place < n; place++) {
    const row = isLeast ? places[n - 1 - place] : places[place];
    if (isCategory && category[row] !== id) continue;
    if (shows(row) && fits(row)) rows[length++] = row;
  }
  const found = rows.slice(0, length);
  if (view.kind === "uncertain") found.sort((a, b) => confidence[a] - confidence[b] || a - b);
  if (view.kind === "labels") found.sort((a, b) => doubtOf(b) - doubtOf(a) || a - b);
  return found;
}

function take(changes) {
  if (!changes || changes.seq === undefined || changes.seq < store.seq) return;
  const isNews = changes.seq > store.seq, before = store.seq;
  const [rows, status, category] = [changes.rows, changes.status, changes.category].map(unpack);
  for (let at = 0; at < rows.length; at++) {
    store.status[rows[at]] = status[at];
    store.category[rows[at]] = category[at];
  }
  for (const category of changes.categories) {
    store.categories.set(category.id, { ...store.categories.get(category.id), ...category });
  }
  for (const id of changes.gone) store.categories.delete(id);
  const entries = changes.entries.filter((entry) => entry.seq > store.seq);
  const others = entries.filter((entry) => !isHere(entry));
  store.entries = [...store.entries, ...entries].slice(-200);
  const { seq, undo, redo, distinct } = changes, theirs = others.at(-1)?.seq ?? store.theirs;
  Object.assign(store, { seq, undo, redo, changed: rows, theirs, distinct });
  if (!isNews) return;
  count();
  emit({ before, others });
}

// The action as the server reads it.
function packed({ rows, parts, ...action }) {
  if (rows) action.images = pack(rows);
  if (parts) action.parts = parts.map((part) => ({ name: part.name, images: pack(part.rows) }));
  return action;
}

// Do something. Resolves to true when it counts; a refusal is thrown after its news were taken in, with the images that
// have `changed` since `base` and what others did.
// `base` is the state that it was decided on: what others have changed since then is refused.
let acting = 0;
export const isActing = () => acting > 0;
export function act(action, base) {
  acting++;
  return inTurn(async () => {
    try {
      const changes = await post(packed(action), base);
      take(changes);
      setProblem("");
      waiting?.abort(); // its response would repeat this one
      return true;
    } catch (error) {
      if (error instanceof Refused && error.answer.seq !== undefined) {
        take(error.answer);
        setProblem("");
        const others = error.answer.entries.filter((entry) => !isHere(entry));
        Object.assign(error, { changed: unpack(error.answer.rows), others });
      }
      throw error;
    } finally {
      acting--;
    }
  });
}

let waiting = null;
let problem = ""; // why the server cannot be reached
let tellProblem = () => {};
function setProblem(words) {
  problem = words;
  tellProblem(words);
}
const AWAY = "The server does not respond. All acknowledged actions are saved; start `shoal review` again.";

// Whether somebody can see the page. A browser has six connections to a server, for all of its tabs: those behind
// others leave theirs to the one in front, and ask for what they missed when they are shown again.
const isInSight = () => document.visibilityState === "visible";
const inSight = () => isInSight() || new Promise((done) => {
  document.addEventListener("visibilitychange", () => done(), { once: true });
}).then(inSight);
document.addEventListener("visibilitychange", () => isInSight() || waiting?.abort());

// Receive the changes of others, in an endless loop. `tells` is called with a message when the server does not respond,
// and with "" when it does again. Until then the server is asked to respond at once, not only after a change.
export async function listen(tells) {
  tellProblem = tells;
  for (let wait = 500; ; ) {
    await inSight();
    try {
      waiting = new AbortController();
      const asked = { since: store.seq, ...who(), ...(problem && { now: 1 }) };
      take(await getJson("/api/changes", asked, { signal: waiting.signal }));
      setProblem("");
      wait = 500;
    } catch (error) {
      if (error.name === "AbortError") continue;
      setProblem(error instanceof Refused ? error.message : AWAY);
      await new Promise((done) => setTimeout(done, wait));
      wait = Math.min(5000, wait * 1.5);
    }
  }
}
