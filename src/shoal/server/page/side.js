// The left side: views over all images, then the categories with their most typical images.
import { $, arrange, bdi, button, images, kindOf, make, number, thumb, visuallyHidden } from "/static/dom.js";
import * as data from "/static/store.js";

const STRIP = 4, IN_SIGHT = 20, AT_ONCE = 100;

function viewsOf() {
  const { store } = data;
  let uncertain = 0, suspicious = 0;
  for (let row = 0; row < store.n; row++) {
    if (data.isUncertain(row)) uncertain++;
    if (store.given[row] >= 0 && data.isSuspicious(row)) suspicious++;
  }
  return [
    ["all", "All images", store.n],
    ["uncertain", "Uncertain", uncertain],
    ["none", "Without category", data.sizeOf(data.NONE)],
    ["labels", "Suspicious labels", suspicious],
    ["duplicates", "Near-duplicates", null],
    ["merges", "Suggested merges", null],
    ["tree", "Tree", null],
    ["map", "Map", null],
  ];
}

const SORTS = {
  open: (a, b) => data.openOf(b.id) - data.openOf(a.id) || data.sizeOf(b.id) - data.sizeOf(a.id),
  size: (a, b) => data.sizeOf(b.id) - data.sizeOf(a.id),
  uncertain: (a, b) => data.confidenceOfCategory(a.id) - data.confidenceOfCategory(b.id),
  name: () => 0,
};

// The categories that match what is typed into the field above them, in the order chosen there.
export function sorted(text = $("find").value) {
  const wanted = data.folded(text);
  const by = SORTS[$("sort").value] ?? SORTS.open;
  return data.living()
    .filter((category) => data.folded(`${category.name} ${category.note}`).includes(wanted))
    .sort((a, b) => by(a, b) || a.name.localeCompare(b.name, undefined, { numeric: true }));
}

// The button of a view, created once, so that it keeps the focus when numbers change.
const buttons = new Map();
function buttonOf(kind, words, go) {
  if (!buttons.has(kind)) {
    const found = button(words, "", (event) => go(event, { kind }), { className: "view", data: { view: kind } });
    found.append(make("span", { className: "n" }));
    buttons.set(kind, found);
    $("views").append(make("li", {}, found));
  }
  return buttons.get(kind);
}

export function drawSide(view, go) {
  for (const [kind, words, n] of viewsOf()) {
    const found = buttonOf(kind, words, go);
    found.lastChild.textContent = n === null ? "" : number(n);
    if (view.kind === kind) found.setAttribute("aria-current", "true");
    else found.removeAttribute("aria-current");
  }
  drawCategories(view, go);
  shown = Math.max(shown, AT_ONCE); // the first call draws only the visible ones, so that their pictures load soon
}

// Mark the current view in the list without redrawing it; returns whether the list contains it.
export function markCurrent(view) {
  for (const one of $("side").querySelectorAll("[aria-current]")) one.removeAttribute("aria-current");
  const selector = view.kind === "category" ? `[data-id="${view.id}"]` : `[data-view="${view.kind}"]`;
  const found = $("side").querySelector(selector);
  found?.setAttribute("aria-current", "true");
  found?.scrollIntoView({ block: "nearest" });
  return Boolean(found);
}

let shown = IN_SIGHT, current = -1;
export function drawCategories(view, go) {
  const found = sorted();
  const at = found.findIndex((category) => view.kind === "category" && category.id === view.id);
  const visible = found.slice(0, Math.max(shown, at + 1));
  data.typicalOfMany(visible.map((category) => category.id), STRIP);
  const wanted = visible.map((category) => item(category, view, go));
  if (found.length > visible.length) {
    const more = () => {
      shown += 5 * AT_ONCE;
      drawCategories(view, go);
    };
    const words = `Show ${number(found.length - visible.length)} more`;
    wanted.push(make("li", {}, button(words, "", more, { className: "quiet" })));
  }
  if (!found.length) wanted.push(make("li", { className: "muted", textContent: "No category matches." }));
  const isFollowed = view.id !== current || isInSight(); // do not scroll back if the user looks at other categories
  current = view.id;
  arrange($("categories"), wanted);
  if (isFollowed) $("categories").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}

function isInSight() {
  const list = $("categories").getBoundingClientRect();
  const current = $("categories").querySelector("[aria-current]")?.getBoundingClientRect();
  return Boolean(current) && current.bottom > list.top && current.top < list.bottom;
}

// The item of a category, recreated only if its content changed: there are hundreds.
const items = new Map();
function item(category, view, go) {
  const isCurrent = view.kind === "category" && view.id === category.id;
  const rows = data.typicalOf(category.id, STRIP);
  const { id, name } = category, numbers = [data.sizeOf(id), data.openOf(id), data.confidenceOfCategory(id).toFixed(2)];
  const content = JSON.stringify([name, kindOf(category), category.mixed, numbers, rows]);
  const known = items.get(category.id);
  if (known?.content === content) return marked(known.element, isCurrent);
  const strip = String(known?.rows) === String(rows) ? known.element.querySelector(".strip") : stripOf(rows);
  const element = makeItem(category, strip, go);
  items.set(category.id, { content, rows, element });
  return marked(element, isCurrent);
}

const stripOf = (rows) =>
  make("span", { className: "strip", aria: { hidden: "true" } }, ...rows.map((row) => thumb(row)));

function marked(found, isCurrent) {
  if (isCurrent) found.firstChild.setAttribute("aria-current", "true");
  else found.firstChild.removeAttribute("aria-current");
  return found;
}

function makeItem(category, strip, go) {
  const { id, name } = category, kind = kindOf(category), size = data.sizeOf(id), open = data.openOf(id);
  const share = size ? 1 - open / size : 1;
  const bar = make("span", { className: "mini" }, make("span"));
  bar.firstChild.style.width = `${100 * share}%`;
  const left = open ? `${number(open)} left` : size ? "done" : "empty";
  const dot = make("span", { className: `dot ${kind}`, title: kind }, visuallyHidden(kind));
  const line = make("span", { className: "line" }, dot, bdi(name));
  const about = { className: "kind", textContent: "two?", title: "May be a mixture of two categories" };
  if (category.mixed) line.append(make("span", about));
  const sure = data.confidenceOfCategory(id).toFixed(2), word = visuallyHidden(size === 1 ? " image" : " images");
  const numbers = make("span", {}, number(size), word, " · ", visuallyHidden("confidence "), sure);
  const words = make("span", { className: "line muted" }, numbers, bar, left);
  const goes = (event) => go(event, { kind: "category", id });
  const found = button(line, "", goes, { className: "category", data: { id } });
  found.append(strip, words);
  return make("li", {}, found);
}

// The category in the list under the pointer, or null.
export function categoryUnder({ clientX, clientY }) {
  const found = document.elementFromPoint(clientX, clientY)?.closest(".category");
  return found ? Number(found.dataset.id) : null;
}

// Show at the pointer how many images are dragged, and mark the category they would be moved to; null ends it. The list
// scrolls while the pointer is near its upper or lower end.
const EDGE = 48, SCROLL_STEP = 10, SCROLL_MS = 16;
let scrolling = 0;
export function showDrag(event, n) {
  clearInterval(scrolling);
  $("drag").hidden = !event;
  markTarget(event);
  if (!event) return;
  $("drag").textContent = images(n);
  $("drag").style.translate = `${event.clientX + 12}px ${event.clientY + 12}px`;
  const list = $("categories"), { top, bottom, right } = list.getBoundingClientRect();
  const isNearTop = event.clientY < top + EDGE, isNearEnd = event.clientY > bottom - EDGE;
  if (event.clientX > right || isNearTop === isNearEnd) return;
  scrolling = setInterval(() => {
    list.scrollTop += isNearEnd ? SCROLL_STEP : -SCROLL_STEP;
    markTarget(event);
  }, SCROLL_MS);
}

function markTarget(event) {
  for (const one of $("categories").querySelectorAll(".target")) one.classList.remove("target");
  const id = event ? categoryUnder(event) : null;
  if (id !== null) $("categories").querySelector(`[data-id="${id}"]`).classList.add("target");
}

// The next category with undecided images: one in the list, or else one that the list does not show.
export const nextOpen = (id) => openAfter(sorted(), id) ?? openAfter(sorted(""), id);

function openAfter(categories, id) {
  const at = categories.findIndex((category) => category.id === id);
  const after = [...categories.slice(at + 1), ...categories.slice(0, Math.max(at, 0))];
  return after.find((category) => data.openOf(category.id))?.id ?? null;
}

export function neighbor(id, step) {
  const found = sorted();
  if (!found.length) return null;
  const at = found.findIndex((category) => category.id === id);
  return found[at < 0 ? 0 : (at + step + found.length) % found.length].id;
}
