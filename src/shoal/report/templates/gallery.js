// The gallery: sort and filter the cards.
const cards = [...document.querySelectorAll("#cards > .card")];

const orders = {
  size: (a, b) => b.dataset.size - a.dataset.size,
  uncertainty: (a, b) => a.dataset.confidence - b.dataset.confidence,
  novelty: (a, b) => (b.dataset.kind === "novel") - (a.dataset.kind === "novel") || similarity(a) - similarity(b),
  name: () => 0,
};
const similarity = (card) => (Number.isFinite(Number(card.dataset.similarity)) ? Number(card.dataset.similarity) : -1);
const byName = (a, b) => a.dataset.name.localeCompare(b.dataset.name, undefined, { numeric: true });

function arrange() {
  const wanted = $("filter").value.trim().toLocaleLowerCase();
  const kind = $("kind").value;
  const order = orders[$("sort").value];
  cards.sort((a, b) => order(a, b) || byName(a, b));
  let n = 0;
  for (const card of cards) {
    const fits = card.dataset.text.toLocaleLowerCase().includes(wanted) && (!kind || card.dataset.kind === kind);
    card.hidden = !fits;
    n += fits;
  }
  $("cards").append(...cards);
  $("gallery-status").textContent = `${n} of ${cards.length} cards`;
  $("nothing").hidden = n > 0;
}

if (cards.length) {
  $("filter").addEventListener("input", arrange);
  $("kind").addEventListener("change", arrange);
  $("sort").addEventListener("change", arrange);
}
