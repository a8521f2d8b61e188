// Keys: arrows go from photograph to photograph, a number opens one of a section, Escape goes back, ? shows the help.
const help = document.getElementById("help"), dialog = document.getElementById("keys");
help.hidden = false;
help.addEventListener("click", () => dialog.showModal());

const photographs = (inside = document) => [...inside.querySelectorAll("main a.card, main .card a, main .pick")];
const middle = (element) => { const box = element.getBoundingClientRect(); return (box.left + box.right) / 2; };
const top_of = (element) => Math.round(element.getBoundingClientRect().top);
const in_view = (element) => { const box = element.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight; };
const first_in_view = () => photographs().find(in_view) || photographs()[0];

// The one to the left or right, or the nearest one of the row above or below.
function next_to(one, key) {
  const all = photographs(), place = all.indexOf(one);
  if (key === "ArrowLeft") return all[place - 1];
  if (key === "ArrowRight") return all[place + 1];
  const down = key === "ArrowDown";
  const rows = (down ? all.slice(place) : all.slice(0, place).reverse()).filter((each) => (down ? top_of(each) > top_of(one) + 5 : top_of(each) < top_of(one) - 5));
  if (!rows.length) return undefined;
  const row = rows.filter((each) => Math.abs(top_of(each) - top_of(rows[0])) < 5);
  return row.reduce((best, each) => (Math.abs(middle(each) - middle(one)) < Math.abs(middle(best) - middle(one)) ? each : best));
}

function go(element) {
  element.focus({ preventScroll: true });
  element.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented || dialog.open) return;
  const on = event.target, writes = on.matches("input:not([type=checkbox]), select, textarea");
  const one = on.closest(".card") && photographs(on.closest(".card").parentElement).find((each) => each.closest(".card") === on.closest(".card") && (each === on || each.matches(".pick")));
  if (event.key === "Escape") {
    const up = document.querySelector("link[rel=up]");
    if (writes) on.blur();
    else if (up) location.href = up.href;
  } else if (writes) {
    return;
  } else if (event.key === "?") {
    dialog.showModal();
  } else if (event.key.startsWith("Arrow")) {
    const sideways = event.key === "ArrowLeft" || event.key === "ArrowRight";
    if (!one && !sideways) return;  // the page scrolls
    const to = one ? next_to(one, event.key) : first_in_view();
    if (!to) return;
    event.preventDefault();
    go(to);
  } else if (/^[1-9]$/.test(event.key)) {
    const first = one || first_in_view();
    const section = first && first.closest("section, fieldset");
    const chosen = section && photographs(section)[event.key - 1];
    if (!chosen) return;
    event.preventDefault();
    go(chosen);
    chosen.click();
  }
});
