// Splitting a category: a slider over the tree, and a preview of every part.
import { getJson } from "/static/api.js";
import { ask, images, make, say, strip } from "/static/dom.js";
import * as data from "/static/store.js";

export function askSplit(id) {
  const base = data.nameOf(id);
  const names = [];
  return ask(`Split ${base}`, (form, done) => {
    const most = Math.min(20, data.sizeOf(id));
    const slider = make("input", { type: "range", min: "2", max: String(most), value: "2", step: "1" });
    slider.setAttribute("autofocus", "");
    const told = make("output", { className: "muted" });
    const place = make("div", { className: "parts" });
    const split = make("button", { type: "submit", className: "main", textContent: "Split", disabled: true });
    let parts = [], asked = 0;
    const free = (at) => {
      for (let n = at + 1; ; n++) if (!data.named(`${base} (${n})`) && !names.includes(`${base} (${n})`)) return `${base} (${n})`;
    };
    const draw = async () => {
      const turn = ++asked, wanted = Number(slider.value);
      told.textContent = `${wanted} parts`;
      split.disabled = true; // until they are shown; Enter in the form then does nothing either
      try {
        const found = await getJson("/api/parts", { category: id, parts: wanted });
        if (turn !== asked) return;
        parts = found.parts;
        place.replaceChildren(...parts.map((rows, at) => {
          if (at) names[at] ||= free(at);
          const input = make("input", { type: "text", value: at ? names[at] : base, disabled: !at, maxLength: 200, ariaLabel: `Name of part ${at + 1}`, on: { input: () => (names[at] = input.value.trim()) } });
          return make("section", { className: "part" }, make("div", { className: "tools" }, input, make("span", { className: "muted", textContent: `${images(rows.length)}${at ? "" : ", stay"}` })), strip(rows.slice(0, 16)));
        }));
        split.disabled = false;
      } catch (error) {
        say(error.message, true);
        done(null);
      }
    };
    slider.addEventListener("input", draw);
    form.addEventListener("submit", () => {
      if (parts.length) done(parts.slice(1).map((rows, at) => ({ rows, name: names[at + 1] || free(at + 1) })));
    });
    form.append(make("div", { className: "tools" }, make("label", { className: "wide" }, "Parts ", slider), told,
split), place);
    draw();
  }, { wide: true });
}
