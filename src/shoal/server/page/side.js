// The left side: views over all images, then the categories with their most typical images.
import { $, arrange, bdi, button, kindOf, make, number, thumb, unseen } from "/static/dom.js";
import * as data from "/static/store.js";

const STRIP = 4, IN_SIGHT = 20, AT_ONCE = 100;

function viewsOf() {
  const { store } = data;
  let unsure = 0, suspected = 0;
  for (let row = 0; row < store.n; row++) {
    if (data.isUnsure(row)) unsure++;
    if (store.given[row] >= 0 && data.isSuspected(row)) suspected++;
  }
  return [
    ["all", "All images", store.n],
    ["unsure", "Uncertain", unsure],
    ["none", "Without category", data.sizeOf(data.NONE)],
    ["labels", "Suspected labels", suspected],
    ["merges", "Suggested merges", null],
    ["map", "Map", null],
  ];
}

const SORTS = {
  open: (a, b) => data.openOf(b.id) - data.openOf(a.id) || data.sizeOf(b.id) - data.sizeOf(a.id),
  size: (a, b) => data.sizeOf(b.id) - data.sizeOf(a.id),
  unsure: (a, b) => data.sureOf(a.id) - data.sureOf(b.id),
  name: () => 0,
};

export function sorted() {
  const wanted = $("find").value.trim().toLocaleLowerCase();
  const by = SORTS[$("sort").value] ?? SORTS.open;
  return data.living()
    .filter((category) => category.name.toLocaleLowerCase().includes(wanted))
    .sort((a, b) => by(a, b) || a.name.localeCompare(b.name, undefined, { numeric: true }));
}

// The button of a view, made once: whoever has it in focus keeps it when numbers change.
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
  shown = Math.max(shown, AT_ONCE); // the first time those in sight, so that their pictures come soon
}

// Show at once where the view is, in the list as it stands; says whether it is in it.
export function markCurrent(view) {
  for (const one of $("side").querySelectorAll("[aria-current]")) one.removeAttribute("aria-current");
  const own = view.kind === "category" ? `[data-id="${view.id}"]` : `[data-view="${view.kind}"]`;
  const found = $("side").querySelector(own);
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
  if (!found.length) wanted.push(make("li", { className: "muted", textContent: "No category has this name." }));
  const isFollowed = view.id !== current || isInSight(); // whoever looks at others there is not taken back to it
  current = view.id;
  arrange($("categories"), wanted);
  if (isFollowed) $("categories").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}

function isInSight() {
  const list = $("categories").getBoundingClientRect();
  const own = $("categories").querySelector("[aria-current]")?.getBoundingClientRect();
  return Boolean(own) && own.bottom > list.top && own.top < list.bottom;
}

// The item of a category, made anew only where it says something else than before: there are hundreds.
const items = new Map();
function item(category, view, go) {
  const isCurrent = view.kind === "category" && view.id === category.id;
  const rows = data.typicalOf(category.id, STRIP);
  const { id, name } = category, numbers = [data.sizeOf(id), data.openOf(id), data.sureOf(id).toFixed(2)];
  const said = JSON.stringify([name, kindOf(category), category.mixed, numbers, rows]);
  const known = items.get(category.id);
  const found = known?.said === said ? known.element : makeItem(category, rows, go);
  if (found !== known?.element) items.set(category.id, { said, element: found });
  if (isCurrent) found.firstChild.setAttribute("aria-current", "true");
  else found.firstChild.removeAttribute("aria-current");
  return found;
}

function makeItem(category, rows, go) {
  const { id, name } = category, kind = kindOf(category), size = data.sizeOf(id), open = data.openOf(id);
  const share = size ? 1 - open / size : 1;
  const bar = make("span", { className: "mini" }, make("span"));
  bar.firstChild.style.width = `${100 * share}%`;
  const left = open ? `${number(open)} left` : size ? "done" : "empty";
  const dot = make("span", { className: `dot ${kind}`, title: kind }, unseen(kind));
  const line = make("span", { className: "line" }, dot, bdi(name));
  const about = { className: "kind", textContent: "two?", title: "May hold another category" };
  if (category.mixed) line.append(make("span", about));
  const sure = data.sureOf(id).toFixed(2), word = unseen(size === 1 ? " image" : " images");
  const numbers = make("span", {}, number(size), word, " · ", unseen("confidence "), sure);
  const words = make("span", { className: "line muted" }, numbers, bar, left);
  const strip = make("span", { className: "strip", aria: { hidden: "true" } }, ...rows.map((row) => thumb(row)));
  const goes = (event) => go(event, { kind: "category", id });
  const found = button(line, "", goes, { className: "category", data: { id } });
  found.append(strip, words);
  return make("li", {}, found);
}

// The category to look at after this one: the next with something undecided, in the order of the list.
export function nextOpen(id) {
  const found = sorted();
  const at = found.findIndex((category) => category.id === id);
  for (let i = 1; i <= found.length; i++) {
    const candidate = found[(at + i + found.length) % found.length];
    if (candidate && candidate.id !== id && data.openOf(candidate.id)) return candidate.id;
  }
  return null;
}

export function neighbor(id, step) {
  const found = sorted();
  if (!found.length) return null;
  const at = found.findIndex((category) => category.id === id);
  return found[at < 0 ? 0 : (at + step + found.length) % found.length].id;
}
