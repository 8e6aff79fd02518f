// One image: the original, what is known of it, and the nearest known category beside it.
import { getJson } from "/static/api.js";
import { $, ask, bdi, button, digits, make, thumb } from "/static/dom.js";
import * as data from "/static/store.js";
import { showThumbnail } from "/static/thumbs.js";

const known = new Map();

// What the server knows of images; asked once per state of the review.
export async function describe(rows) {
  const missing = rows.filter((row) => known.get(row)?.seq !== data.store.seq);
  for (let at = 0; at < missing.length; at += 200) {
    const seq = data.store.seq;
    const found = await getJson("/api/images", { rows: missing.slice(at, at + 200).join(",") });
    for (const image of found) known.set(image.row, { ...image, seq });
  }
  if (known.size > 20000) known.clear();
  return rows.map((row) => known.get(row)).filter(Boolean);
}

export function inWords(image) {
  const said = [image.path, data.nameOf(data.store.category[image.row]), image.status, `confidence ${digits(image.confidence)}`];
  if (image.given) said.push(`labeled ${image.given}`);
  return said.join(", ");
}

function picture(row, isLarge) {
  const image = make("img", { className: "large", alt: "", decoding: "async" });
  showThumbnail(row, image);
  if (data.store.run.has.originals) {
    const original = new Image();
    original.onload = () => {
      image.src = original.src;
      image.classList.add("original");
    };
    original.src = `/image/${row}?v=${data.store.run.version}`;
  }
  return make("div", { className: isLarge ? "picture whole" : "picture" }, image);
}

function side(words, name, note) {
  const category = data.named(name);
  const row = category ? data.typicalOf(category.id, 1)[0] : undefined;
  const shown = row === undefined ? make("span", { className: "thumb" }) : thumb(row);
  return make("figure", {}, shown, make("figcaption", {}, words, make("br"), bdi(name), note ? make("span", { className: "muted", textContent: ` ${note}` }) : null));
}

function facts(image) {
  const rows = [
    ["Category", data.nameOf(data.store.category[image.row])],
    ["Found as", image.found === data.nameOf(data.store.category[image.row]) ? "" : image.found],
    ["Given label", image.given],
    ["Confidence", digits(image.confidence)],
    ["Outlier score", digits(image.outlier)],
    ["Status", image.by ? `${image.status} by ${image.by}, ${image.at.slice(0, 16).replace("T", " ")}` : image.status],
    ["Rejected from", image.rejected.join(", ")],
    ["Path", image.path],
  ];
  const list = make("dl", { className: "facts" });
  for (const [name, value] of rows) if (value) list.append(make("dt", { textContent: name }), make("dd", {}, bdi(value)));
  return list;
}

function compare(image) {
  const found = make("div", { className: "compare" });
  const own = data.nameOf(data.store.category[image.row]);
  const isBoth = image.nearest === image.second;
  if (image.nearest && image.nearest !== own) found.append(side(isBoth ? "Nearest known and second choice" : "Nearest known", image.nearest, digits(image.similarity)));
  if (image.second && image.second !== own && !isBoth) found.append(side("Second choice", image.second, ""));
  return found;
}

export async function drawDetails(row, verbs) {
  const place = $("details");
  if (row < 0) {
    place.replaceChildren();
    return;
  }
  const [image] = await describe([row]);
  if (!image || place.dataset.wanted !== String(row)) return;
  const tools = make("div", { className: "tools" }, button("Enlarge ", "Enter", () => verbs.open(row)));
  if (data.store.run.has.embeddings) tools.append(button("Find similar ", "l", () => verbs.similar(row)));
  if (image.second && data.named(image.second) && !data.store.run.read_only) {
    tools.append(button("To second choice ", "2", () => verbs.second()), button("Between both ", "b", () => verbs.either()));
  }
  place.replaceChildren(picture(row, false), make("h2", {}, bdi(image.name)), compare(image), facts(image), tools);
}

export async function enlarge(row, step) {
  const [image] = await describe([row]);
  if (!image) return;
  await ask(image.name, (form, done) => {
    const turn = (by) => {
      const next = step(by);
      if (next >= 0) enlarge(next, step);
    };
    const arrows = make("div", { className: "tools" },
      button("Previous ", "←", () => turn(-1), { autofocus: true }), button("Next ", "→", () => turn(1)), button("Close ", "Esc", () => done(null)));
    form.append(make("div", { className: "viewer" }, picture(row, true), make("div", {}, compare(image), facts(image), arrows)));
    form.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        event.preventDefault();
        turn(event.key === "ArrowLeft" ? -1 : 1);
      }
    });
  }, { wide: true });
}
