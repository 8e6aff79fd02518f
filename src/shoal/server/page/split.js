// Splitting a category: a slider over the tree, and a preview of every part.
import { getJson } from "/static/api.js";
import { ask, button, clamped, images, make, number, notify, visuallyHidden } from "/static/dom.js";
import * as data from "/static/store.js";
import { strip } from "/static/strips.js";

// Match names with parts: a name belongs to the part with most of the images it was given to. If two names match one
// part, the one with more images wins; the first part keeps the name of the category. Returns a name or null per part.
export function placed(given, parts) {
  const held = parts.map(() => null), shares = parts.map(() => 0);
  for (const one of given) {
    const named = new Set(one.rows), counts = parts.map((rows) => rows.filter((row) => named.has(row)).length);
    const most = Math.max(...counts), at = counts.indexOf(most);
    if (at && most > shares[at]) [held[at], shares[at]] = [one, most];
  }
  return held;
}

const SHOWN = 16, MORE = 500; // images of a part at first, and with every press of its button

// The first part whose name is that of the split category or of another new part.
const clashOf = (id, names) => {
  const folds = names.map(data.folded);
  return names.findIndex((name, at) => at > 0
    && (data.named(name)?.id === id || (!data.named(name) && folds.indexOf(folds[at]) !== at)));
};

// Ask how to split a category; resolves to the parts that become categories (`parts`), those that are given to existing
// ones (`moves`), or null. The dialog opens immediately and requests the preview at its `turn`. `given` are names with the
// images they were given to, for a dialog that is opened again. The first part has most of the given labels. If other
// parts have some too, the user chooses (`relabels`) whether these images are confirmed under the name of their part;
// otherwise their labels stay.
export function askSplit(id, turn, { n = 2, given = [], relabels = false } = {}) {
  const base = data.nameOf(id), most = Math.min(20, data.sizeOf(id));
  return ask(`Split ${base}`, (form, done) => {
    const slider = make("input", { type: "range", min: "2", max: String(most), value: String(n), step: "1" });
    slider.setAttribute("autofocus", "");
    const count = make("output", { className: "muted", textContent: `${slider.value} parts` });
    const waiting = make("p", { className: "muted", textContent: "Computing the parts …" });
    const place = make("div", { className: "parts" }, waiting);
    const note = make("output", { className: "muted" });
    const split = make("button", { type: "submit", className: "main", textContent: "Split", disabled: true });
    const whose = make("select", {},
      make("option", { value: "", textContent: `stay labeled ${clamped(base)}` }),
      make("option", { value: "part", textContent: "are labeled as their part", selected: relabels }));
    const leave = make("span");
    const question = make("label", { hidden: true }, leave, whose);
    const others = data.living().filter((category) => category.id !== id);
    const completions = make("datalist", { id: "names" }, ...others.map(({ name }) => make("option", { value: name })));
    let parts = [], held = [], names = [], latest = 0;
    const labeled = (rows) => rows.filter((row) => data.givenOf(row) === id);
    const leaving = () => parts.flatMap((rows, at) => (at && !data.named(names[at]) ? labeled(rows) : []));
    const free = (at) => {
      for (let n = at + 1; ; n++) {
        const name = `${base} (${n})`;
        if (!data.named(name) && !names.includes(name)) return name;
      }
    };
    const fillNames = () => names.forEach((name, at) => (names[at] = at ? name || free(at) : base));
    const typed = (rows, at, name) => {
      const others = held.filter((one) => one && one !== held[at]);
      given = given.filter((one) => one !== held[at] && (one.name !== name || others.includes(one)));
      held[at] = name ? { name, rows } : null;
      names[at] = name;
      if (name) given.push(held[at]);
    };
    const about = (rows, at) => {
      const n = labeled(rows).length, known = n ? `, ${number(n)} labeled ${clamped(base)}` : "";
      const there = at ? data.named(names[at]) : undefined;
      const becomes = there ? `, moved to ${clamped(there.name)}` : "";
      return `${images(rows.length)}${known}${at ? becomes : ", keeps the name"}`;
    };
    const part = (rows, at) => {
      const facts = make("span", { className: "muted", textContent: about(rows, at) });
      const named = { value: at ? names[at] : base, disabled: !at, ariaLabel: `Name of part ${at + 1}` };
      const input = make("input", { type: "text", maxLength: 200, ...named });
      input.setAttribute("list", "names");
      input.addEventListener("input", () => {
        typed(rows, at, input.value.trim());
        facts.textContent = about(rows, at);
      });
      const label = `Images of part ${at + 1}`, shown = strip(rows.slice(0, SHOWN), label);
      const more = button(`Show all ${number(rows.length)}`, "", () => {
        const next = rows.slice(shown.childElementCount, shown.childElementCount + MORE);
        shown.classList.add("all");
        shown.append(...strip(next, label).children);
        more.textContent = `Show ${number(rows.length - shown.childElementCount)} more`;
        more.hidden = shown.childElementCount === rows.length;
      }, { className: "quiet", hidden: rows.length <= SHOWN });
      return make("section", { className: "part" }, make("div", { className: "tools" }, input, facts, more), shown);
    };
    const draw = async () => {
      const request = ++latest, wanted = Number(slider.value);
      count.textContent = `${wanted} parts`;
      split.disabled = true; // until the parts are shown; Enter then does nothing either
      try {
        const found = await getJson("/api/parts", { category: id, parts: wanted });
        if (request !== latest || !form.isConnected) return;
        parts = found.parts;
        held = placed(given, parts);
        names = held.map((one) => one?.name ?? "");
        fillNames();
        const without = given.filter((one) => !held.includes(one)).map(({ name }) => name);
        note.textContent = without.length ? `No part is named ${without.join(", ")} anymore.` : "";
        count.append(visuallyHidden(`: ${parts.map((rows) => number(rows.length)).join(", ")} images`));
        place.replaceChildren(...parts.map(part));
        const { length } = parts.slice(1).flatMap(labeled);
        question.hidden = !length;
        leave.textContent = `${images(length)} labeled ${clamped(base)} would leave it and `;
        split.disabled = false;
      } catch (error) {
        if (!form.isConnected) return;
        done(null);
        notify(error.message, true);
      }
    };
    slider.addEventListener("input", draw);
    form.addEventListener("submit", () => {
      if (split.disabled) return;
      fillNames();
      const clash = clashOf(id, names);
      if (clash > 0) {
        notify(`Another part is named ${names[clash]}: choose another name.`, true);
        place.querySelectorAll("input")[clash].focus();
        return;
      }
      relabels = whose.value === "part";
      const leaves = parts.map((rows, at) => ({ rows, name: names[at] })).slice(1);
      const isGiven = ({ name }) => Boolean(data.named(name));
      const moves = leaves.filter(isGiven).map(({ rows, name }) => ({ rows, id: data.named(name).id }));
      const news = leaves.filter((one) => !isGiven(one));
      done({ n: parts.length, given, relabels, parts: news, moves, confirms: relabels ? leaving() : [] });
    });
    const label = make("label", { className: "wide" }, "Parts ", slider);
    form.append(make("div", { className: "tools" }, label, count, split, note), question, place, completions);
    turn.then((counts) => counts && draw());
  }, { wide: true, turn });
}
