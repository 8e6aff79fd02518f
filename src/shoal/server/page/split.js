// Splitting a category: a slider over the tree, and a preview of every part.
import { getJson } from "/static/api.js";
import { ask, images, make, number, say, unseen } from "/static/dom.js";
import * as data from "/static/store.js";
import { strip } from "/static/strips.js";

// The parts that shall be categories of their own, or null; opened at once, the preview is asked for at its `turn`.
// `names` are those given to the parts, by their place: whoever has to be asked again finds them there.
export function askSplit(id, turn, { n = 2, names = [] } = {}) {
  const base = data.nameOf(id), most = Math.min(20, data.sizeOf(id));
  return ask(`Split ${base}`, (form, done) => {
    const slider = make("input", { type: "range", min: "2", max: String(most), value: String(n), step: "1" });
    slider.setAttribute("autofocus", "");
    const told = make("output", { className: "muted", textContent: `${slider.value} parts` });
    const waiting = make("p", { className: "muted", textContent: "Looking for the parts …" });
    const place = make("div", { className: "parts" }, waiting);
    const split = make("button", { type: "submit", className: "main", textContent: "Split", disabled: true });
    let parts = [], asked = 0;
    const free = (at) => {
      for (let n = at + 1; ; n++) {
        const name = `${base} (${n})`;
        if (!data.named(name) && !names.includes(name)) return name;
      }
    };
    const part = (rows, at) => {
      if (at) names[at] ||= free(at);
      const named = { value: at ? names[at] : base, disabled: !at, ariaLabel: `Name of part ${at + 1}` };
      const on = { input: () => (names[at] = input.value.trim()) };
      const input = make("input", { type: "text", maxLength: 200, ...named, on });
      const size = make("span", { className: "muted", textContent: `${images(rows.length)}${at ? "" : ", stay"}` });
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
        told.append(unseen(`: ${parts.map((rows) => number(rows.length)).join(", ")} images`));
        place.replaceChildren(...parts.map(part));
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
      const others = parts.slice(1).map((rows, at) => ({ rows, name: names[at + 1] || free(at + 1) }));
      done({ n: parts.length, names, parts: others });
    });
    const label = make("label", { className: "wide" }, "Parts ", slider);
    form.append(make("div", { className: "tools" }, label, told, split), place);
    turn.then((counts) => counts && draw());
  }, { wide: true, turn });
}
