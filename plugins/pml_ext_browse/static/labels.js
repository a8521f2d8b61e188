// Suspicious labels: "a" accepts the likely class, "k" keeps the given one; then comes the next photograph.
const labels = document.getElementById("labels"), decided = document.getElementById("decided");
const cards = [...labels.querySelectorAll(".card")];
const chosen = (card) => card.querySelector("input:checked");

function count() {
  const done = cards.filter(chosen), accepted = done.filter((card) => chosen(card).value === "accept");
  for (const card of cards) card.classList.toggle("right", Boolean(chosen(card)));
  decided.textContent = `${done.length} of these ${cards.length} decided, ${accepted.length} accepted. Keys: a accepts the likely class, k keeps the given one.`;
}

labels.addEventListener("input", count);
document.addEventListener("keydown", (event) => {
  const decision = { a: "accept", k: "keep" }[event.key];
  if (!decision || event.ctrlKey || event.altKey || event.metaKey || dialog.open) return;
  if (event.target.matches("input:not([type=checkbox], [type=radio]), select")) return;
  const card = event.target.closest("#labels .card") || cards.find((each) => !chosen(each));
  if (!card) return;
  const field = card.querySelector(`input[value=${decision}]`);
  field.checked = true;
  for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
  const next = cards[cards.indexOf(card) + 1] || card;
  go(next.querySelector("a"));
});
count();
