// The viewer: one enlarged image with its details, and images to compare it with.
const viewer = $("viewer");
let viewed = [];
let viewedAt = 0;

function view(rows, at) {
  viewed = rows;
  viewedAt = at;
  showViewed();
  if (!viewer.open) viewer.showModal();
}

function showViewed() {
  const found = image(viewed[viewedAt]);
  $("viewer-place").textContent = viewed.length > 1 ? `${viewedAt + 1} of ${viewed.length}; use the arrow keys` : "";
  $("viewer-name").replaceChildren(make("bdi", { textContent: found.path }));
  const source = thumbnail(found.row);
  $("viewer-image").replaceChildren(
    source ? make("img", { src: source, alt: found.path }) : make("p", { className: "muted", textContent: "This page has no thumbnail of this image." }),
  );
  const facts = [
    ["Category", `${found.category} (${kindMark(found.isNovel)} ${kindWord(found.isNovel)})`],
    ["Confidence", digits(found.confidence)],
    ["Second choice", found.second || "none"],
    ["Given label", found.given || "none"],
    ["Nearest known", found.nearest ? `${found.nearest} (similarity ${digits(found.similarity)})` : "none"],
    ["Outlier score", digits(found.outlier)],
  ];
  $("viewer-facts").replaceChildren(
    ...facts.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", {}, make("bdi", { textContent: value }))]),
  );
  $("viewer-compare").replaceChildren(...compared(found));
  $("viewer-previous").disabled = viewedAt === 0;
  $("viewer-next").disabled = viewedAt === viewed.length - 1;
  const link = $("viewer-open");
  link.hidden = !images.root;
  const [file] = found.path.split(/#xywh=[\d,]+$/); // the image of a box
  if (images.root) link.href = `${images.root}/${file.split("/").map(encodeURIComponent).join("/")}`;
}

function compared(found) {
  const typicalOf = (name) => images.categories.find((category) => category.name === name)?.typical ?? -1;
  const pairs = [["typical of", found.category, found.typical]];
  if (found.second) pairs.push(["second choice", found.second, typicalOf(found.second)]);
  if (found.nearest && found.nearest !== found.category && found.nearest !== found.second)
    pairs.push(["nearest known", found.nearest, typicalOf(found.nearest)]);
  return pairs
    .filter(([, , row]) => row >= 0 && thumbnail(row))
    .map(([word, name, row]) =>
      make("figure", {}, make("img", { src: thumbnail(row), alt: "" }), make("figcaption", {}, `${word} `, make("bdi", { textContent: name }))),
    );
}

function turn(step) {
  const at = viewedAt + step;
  if (at < 0 || at >= viewed.length) return;
  viewedAt = at;
  showViewed();
}

document.addEventListener("click", (event) => {
  const tile = event.target.closest("button.tile[data-row]");
  if (!tile) return;
  const group = tile.closest(".nearest, article, #selection, .merge, .suspicious") ?? tile.parentElement;
  const others = [...group.querySelectorAll("button.tile[data-row]")].filter((other) => group.matches(".nearest") || !other.closest(".nearest"));
  const rows = [...new Set(others.map((other) => Number(other.dataset.row)))];
  view(rows, rows.indexOf(Number(tile.dataset.row)));
});
$("viewer-previous").addEventListener("click", () => turn(-1));
$("viewer-next").addEventListener("click", () => turn(1));
$("viewer-close").addEventListener("click", () => viewer.close());
viewer.addEventListener("click", (event) => {
  if (event.target === viewer) viewer.close(); // the backdrop
});
viewer.addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") turn(-1);
  else if (event.key === "ArrowRight") turn(1);
  else return;
  event.preventDefault();
});
$("viewer-copy").addEventListener("click", async () => {
  const path = image(viewed[viewedAt]).path;
  try {
    await navigator.clipboard.writeText(path);
    $("viewer-place").textContent = "Path copied";
  } catch {
    getSelection().selectAllChildren($("viewer-name")); // no clipboard here: leave it selected, ready to copy
    $("viewer-place").textContent = "Path selected; press Ctrl+C";
  }
});
