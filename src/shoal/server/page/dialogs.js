// Dialogs: a name, a target, two categories side by side, the keys, the history.
import { makeCategoryField } from "/static/category-field.js";
import { $, ask, bdi, button, clamped, images, kindOf, make, moment, number } from "/static/dom.js";
import { strip } from "/static/strips.js";
import * as data from "/static/store.js";

const MOST_SIDES = 12; // categories of a branch that are shown before they are merged

// Ask for a name, or for a note, which may be empty; `hint` describes what will happen, `refusal` why a name cannot be used.
export function askName(title, settings) {
  const { value = "", verb, label = "Name", maxLength = 200, required = true, turn = null } = settings;
  const { hint = () => "", refusal = () => "" } = settings;
  return ask(title(), (form, done) => {
    const input = make("input", { type: "text", value, maxLength, autocomplete: "off", required });
    input.setAttribute("autofocus", "");
    const note = make("p", { className: "muted", aria: { live: "polite" } });
    const name = () => input.value.trim();
    const describe = () => (note.textContent = refusal(name()) || hint(name()));
    input.addEventListener("input", describe);
    form.addEventListener("submit", () => (name() || !required) && !refusal(name()) && done(name()));
    const submit = make("button", { type: "submit", className: "main", textContent: verb });
    form.append(make("label", { className: "wide" }, `${label} `, input), note, make("div", { className: "tools" }, submit));
    const draw = () => {
      $("dialog-title").textContent = title();
      describe();
    };
    draw();
    input.select();
    return draw;
  }, { turn });
}

// Ask for a category: resolves to its id, or to the name of one to create.
export function askTarget(title, { suggest, isOffered, turn }) {
  return ask(title(), (form, done) => {
    const { element, list, refresh } = makeCategoryField({ suggest, isOffered, canCreate: true, pick: done });
    const keys = "Digits choose a likely category, Enter the first one that matches what you type.";
    form.append(element, list, make("p", { className: "muted", textContent: keys }));
    const draw = () => {
      $("dialog-title").textContent = title();
      refresh();
    };
    draw();
    return draw;
  }, { turn });
}

// Ask which categories to merge; `other` and the name to keep may be chosen already. Otherwise the first `inRank` keeps it.
export function askMerge(id, { other = null, into = other }, { suggest, turn }) {
  return ask("Merge two categories", (form, done) => {
    const pair = make("div", { className: "pair" });
    const note = make("p", { className: "muted", aria: { live: "polite" } });
    const stays = make("select", { ariaLabel: "Name to keep" });
    const merge = make("button", { type: "submit", className: "main", textContent: "Merge" });
    let chosen = null;
    const show = (found) => {
      const isSame = found === chosen && found !== null;
      chosen = found;
      const ids = chosen === null ? [id] : [chosen, id], [first] = ids.includes(into) ? [into] : inRank(ids);
      const keep = isSame ? Number(stays.value) : first;
      pair.replaceChildren(...ids.toReversed().map(sideOf));
      stays.replaceChildren(...ids.map((one) =>
        make("option", { value: String(one), textContent: clamped(data.nameOf(one)), selected: one === keep })));
      merge.disabled = chosen === null;
      const apart = data.areApart(id, chosen) ? " They are marked as different." : "";
      const size = data.sizeOf(id) + data.sizeOf(chosen ?? data.NONE);
      note.textContent = chosen === null ? "" : `${images(size)} will be one category.${apart}`;
    };
    const accept = () => {
      const into = Number(stays.value);
      if (chosen !== null) done({ other: chosen, into, categories: [into === id ? chosen : id] });
    };
    const value = other === null ? "" : data.nameOf(other);
    const field = makeCategoryField({
      suggest, show, value, isOffered: (one) => one !== id,
      pick(option) {
        if (option.id === chosen) return accept();
        field.input.value = data.nameOf(option.id); // both are shown before they are merged
        field.input.dispatchEvent(new Event("input"));
        field.input.focus();
      },
    });
    form.addEventListener("submit", accept);
    form.append(field.element, field.list, pair, note,
      make("div", { className: "tools" }, make("label", {}, "Name to keep ", stays), merge));
    field.refresh();
    return () => (data.isLiving(id) ? field.refresh() : done(null)); // somebody may have merged it or undone its creation
  }, { wide: true, turn });
}

const isKnown = (id) => !data.store.categories.get(id).novel, isNamed = (id) => data.store.categories.get(id).named;

// Some categories, the one first whose name they would keep: a known one, one that somebody named, the largest.
export const inRank = (ids) => ids.toSorted((a, b) =>
  isKnown(b) - isKnown(a) || isNamed(b) - isNamed(a) || data.sizeOf(b) - data.sizeOf(a));

// Whether some of them are marked as different.
const areSomeApart = (ids) => data.store.distinct.some((pair) => pair.every((id) => ids.includes(id)));

// Whether they can be one category without a question: no two of them have names of their own, or are marked as different.
export const canBeOne = (ids) => ids.filter((id) => isKnown(id) || isNamed(id)).length < 2 && !areSomeApart(ids);

// Ask for the category that those of a branch are merged into; resolves to its id.
export function askBranch(ids, { turn }) {
  const ordered = inRank(ids), size = ids.reduce((n, id) => n + data.sizeOf(id), 0);
  return ask(`Merge ${number(ids.length)} categories`, (form, done) => {
    const options = ordered.map((id) => make("option", { value: String(id), textContent: clamped(data.nameOf(id)) }));
    const stays = make("select", { ariaLabel: "Name to keep" }, ...options);
    const knownCount = ids.filter(isKnown).length, known = knownCount > 1 ? ` ${number(knownCount)} of them are known categories.` : "";
    const areApart = areSomeApart(ids) ? " Some are marked as different." : "";
    const note = make("p", { className: "muted", textContent: `${images(size)} will be one category.${known}${areApart}` });
    const merge = make("button", { type: "submit", className: "main", textContent: "Merge" });
    const rest = ordered.slice(MOST_SIDES).map((id) => clamped(data.nameOf(id))).join(", ");
    const more = rest ? [make("p", { className: "muted", textContent: `and ${rest}`, title: rest })] : [];
    form.addEventListener("submit", () => done(Number(stays.value)));
    form.append(make("div", { className: "pair" }, ...ordered.slice(0, MOST_SIDES).map(sideOf)), ...more, note,
      make("div", { className: "tools" }, make("label", {}, "Name to keep ", stays), merge));
    return () => ids.every(data.isLiving) || done(null);
  }, { wide: true, turn });
}

// Ask whether branches of the tree become one category each; resolves to true. The first category of each keeps its name.
export function askCut(height, branches, { turn }) {
  const n = data.living().filter(({ id }) => data.sizeOf(id)).length, left = branches.reduce((n, ids) => n - ids.length + 1, n);
  return ask(`Cut the tree at ${height.toFixed(2)}`, (form, done) => {
    const words = `${number(n)} categories become ${number(left)}. Those that are known, have been named or are marked as `
      + "different stay apart.";
    const shown = branches.slice(0, MOST_SIDES).map(([into, ...others]) => {
      const title = `${clamped(data.nameOf(into))} ← ${others.map((id) => clamped(data.nameOf(id))).join(", ")}`;
      const pictures = [into, ...others].flatMap((id) => data.typicalOf(id, 3)).slice(0, MOST_SIDES);
      return make("section", { className: "part" }, make("p", { textContent: title }), strip(pictures, title));
    });
    const rest = branches.length - shown.length;
    const more = make("p", { className: "muted", textContent: rest ? `and ${number(rest)} more branches` : "" });
    const cut = make("button", { type: "submit", className: "main", textContent: "Cut" });
    form.addEventListener("submit", () => done(true));
    form.append(make("p", { className: "muted", textContent: words }), ...shown, more, make("div", { className: "tools" }, cut));
    return () => branches.flat().every(data.isLiving) || done(null);
  }, { wide: true, turn });
}

export function sideOf(id) {
  const category = data.store.categories.get(id), kind = kindOf(category);
  const facts = `${images(data.sizeOf(id))}, confidence ${data.confidenceOfCategory(id).toFixed(2)}`;
  return make("section", { className: "side-of" },
    make("h3", {}, bdi(category.name), " ", make("span", { className: `kind ${kind}`, textContent: kind })),
    make("p", { className: "muted", textContent: facts }),
    strip(data.typicalOf(id, 18), `Most typical images of ${category.name}`));
}

const KEYS = [
  ["c", "confirm the selected images; with none selected, confirm all undecided images of the category and go to the "
    + "next one, or, in a list across categories, the image in focus"],
  ["x", "reject the selected images, or the one in focus: they do not belong here"],
  ["f", "flag them as uncertain"],
  ["m", "move them to another category: a digit chooses a likely one, Enter the first that matches what you type"],
  ["n", "create a category from them"],
  ["t", "write a note on them; words such as #blurred are tags, which the filter Path finds"],
  ["2", "move the image in focus to its second choice"],
  ["r", "rename the category"],
  ["j", "merge (join) it with another"],
  ["k", "in the tree: cut it as low as the selected branch"],
  ["s", "split it"],
  ["g", "grow it: accept or refuse candidates, most similar first"],
  ["l", "find images similar to the one in focus"],
  ["u, Ctrl+Z", "undo your last action"],
  ["U, Ctrl+Y", "redo it"],
  ["arrows, Home, End, PgUp, PgDn", "move the focus; with Shift, select"],
  ["Space", "select or deselect the image in focus"],
  ["a, Ctrl+A", "select all; Esc selects none"],
  ["Enter", "enlarge the image; c, x, f, m, n and 2 then decide about it and show the next one, "
    + "the arrows show other images, l finds similar ones, u undoes"],
  ["+, -", "zoom the enlarged image, like scrolling or a double click (full resolution); "
    + "dragging and the arrows then move it, and Esc zooms out"],
  ["] and [", "next and previous category"],
  ["o", "reverse the order of the images"],
  ["/", "find a category"],
  ["?", "this list"],
];

export const showKeys = () => ask("Keys", (form) => {
  const list = make("dl", { className: "keys" });
  for (const [keys, words] of KEYS) {
    const shown = keys.split(", ").flatMap((key, at) => [at ? " " : "", make("kbd", { textContent: key })]);
    list.append(make("dt", {}, ...shown), make("dd", { textContent: words }));
  }
  const mouse = "A click selects or deselects an image, Shift+click selects a range, dragging selects a box. "
    + "A double click enlarges it. “Single keys”, at the top, turns single-key shortcuts off.";
  form.append(list, make("p", { className: "muted", textContent: mouse }));
}, { wide: true });

// Resolves to the action whose images or category are to be shown, or null.
export const showHistory = () => ask("History", (form, done) => {
  const entries = [...data.store.entries].reverse();
  const line = (entry) => {
    const textContent = `${number(entry.seq)} · ${moment(entry.at)} · `;
    const show = button(bdi(entry.words), "", () => done(entry), { className: "quiet", title: "Show what it was about" });
    return make("li", {}, make("span", { className: "muted", textContent }), bdi(entry.by), ": ", show);
  };
  const list = make("ol", { className: "history" }, ...entries.map(line));
  const n = data.store.seq, cut = `The last ${number(entries.length)} of ${number(n)} actions; all are in review.jsonl.`;
  if (n > entries.length) form.append(make("p", { className: "muted", textContent: cut }));
  form.append(entries.length ? list : make("p", { textContent: "No actions yet." }));
});
