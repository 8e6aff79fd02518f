// Splitting a category: a slider over the tree, and a preview of every part.
import { getJson } from "/static/api.js";
import { ask, images, make, number, say, unseen } from "/static/dom.js";
import * as data from "/static/store.js";
import { strip } from "/static/strips.js";

// Which part each name is of: that which has most of the images the name was given to. The first part keeps the name of
// the category; of two names of one part that of more images holds. One for each part, or null.
export function placed(given, parts) {
  const held = parts.map(() => null), shares = parts.map(() => 0);
  for (const one of given) {
    const own = new Set(one.rows), counts = parts.map((rows) => rows.filter((row) => own.has(row)).length);
    const most = Math.max(...counts), at = counts.indexOf(most);
    if (at && most > shares[at]) [held[at], shares[at]] = [one, most];
  }
  return held;
}

// The first part whose name another one or a category has: the server would refuse it.
const clashOf = (names) =>
  names.findIndex((name, at) => at > 0 && (data.named(name) || names.indexOf(name) !== at));

// The parts that shall be categories of their own, or null; opened at once, the preview is asked for at its `turn`.
// `given` are names with the images they were given to: whoever has to be asked again finds them there. The first part
// has most of the labels that came with the images. Where others have some, `relabels` is asked for: whether these
// images are confirmed as what their part is called. Otherwise their label stays.
export function askSplit(id, turn, { n = 2, given = [], relabels = false } = {}) {
  const base = data.nameOf(id), most = Math.min(20, data.sizeOf(id));
  return ask(`Split ${base}`, (form, done) => {
    const slider = make("input", { type: "range", min: "2", max: String(most), value: String(n), step: "1" });
    slider.setAttribute("autofocus", "");
    const told = make("output", { className: "muted", textContent: `${slider.value} parts` });
    const waiting = make("p", { className: "muted", textContent: "Looking for the parts …" });
    const place = make("div", { className: "parts" }, waiting);
    const note = make("output", { className: "muted" });
    const split = make("button", { type: "submit", className: "main", textContent: "Split", disabled: true });
    const whose = make("select", {},
      make("option", { value: "", textContent: `stay labeled ${base}` }),
      make("option", { value: "part", textContent: "are labeled as their part", selected: relabels }));
    const leave = make("span");
    const question = make("label", { hidden: true }, leave, whose);
    let parts = [], held = [], names = [], asked = 0;
    const labeled = (rows) => rows.filter((row) => data.givenOf(row) === id);
    const leaving = () => parts.slice(1).flatMap(labeled);
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
    const part = (rows, at) => {
      const named = { value: at ? names[at] : base, disabled: !at, ariaLabel: `Name of part ${at + 1}` };
      const on = { input: () => typed(rows, at, input.value.trim().normalize()) };
      const input = make("input", { type: "text", maxLength: 200, ...named, on });
      const n = labeled(rows).length, known = n ? `, ${number(n)} labeled ${base}` : "";
      const textContent = `${images(rows.length)}${known}${at ? "" : ", stay"}`;
      const size = make("span", { className: "muted", textContent });
      const head = make("div", { className: "tools" }, input, size);
      return make("section", { className: "part" }, head, strip(rows.slice(0, 16), `Images of part ${at + 1}`));
    };
    const draw = async () => {
      const mine = ++asked, wanted = Number(slider.value);
      told.textContent = `${wanted} parts`;
      split.disabled = true; // until they are shown; Enter in the form then does nothing either
      try {
        const found = await getJson("/api/parts", { category: id, parts: wanted });
        if (mine !== asked || !form.isConnected) return;
        parts = found.parts;
        held = placed(given, parts);
        names = held.map((one) => one?.name ?? "");
        fillNames();
        const without = given.filter((one) => !held.includes(one)).map(({ name }) => name);
        note.textContent = without.length ? `No part has the name ${without.join(", ")} now.` : "";
        told.append(unseen(`: ${parts.map((rows) => number(rows.length)).join(", ")} images`));
        place.replaceChildren(...parts.map(part));
        const { length } = leaving();
        question.hidden = !length;
        leave.textContent = `${images(length)} labeled ${base} would leave it, and `;
        split.disabled = false;
      } catch (error) {
        if (!form.isConnected) return;
        done(null);
        say(error.message, true);
      }
    };
    slider.addEventListener("input", draw);
    form.addEventListener("submit", () => {
      if (split.disabled) return;
      fillNames();
      const clash = clashOf(names);
      if (clash > 0) {
        say(`There is a category or a part called ${names[clash]} already: choose another name.`, true);
        place.querySelectorAll("input")[clash].focus();
        return;
      }
      relabels = whose.value === "part";
      const leaves = parts.slice(1).map((rows, at) => ({ rows, name: names[at + 1] }));
      done({ n: parts.length, given, relabels, parts: leaves, confirms: relabels ? leaving() : [] });
    });
    const label = make("label", { className: "wide" }, "Parts ", slider);
    form.append(make("div", { className: "tools" }, label, told, split, note), question, place);
    turn.then((counts) => counts && draw());
  }, { wide: true, turn });
}
