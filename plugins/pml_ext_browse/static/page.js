// Drop or paste photographs: they go into the form as if they had been chosen. Selections show at once.
const form = document.getElementById("drop");
if (form) {
  const input = form.querySelector("input[type=file]");
  const send = (files) => {
    if (!files.length) return;
    input.files = files;
    submit();
  };
  const submit = () => {
    const most = Number(form.dataset.most), told = document.getElementById("too-many");
    told.hidden = input.files.length <= most;
    told.textContent = `These are ${input.files.length} files; at most ${most} at once.`;
    if (told.hidden) form.requestSubmit();
    else input.value = "";
  };
  input.addEventListener("change", submit);
  document.addEventListener("dragover", (event) => { event.preventDefault(); form.classList.add("over"); });
  document.addEventListener("dragleave", () => form.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    form.classList.remove("over");
    send(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => send(event.clipboardData.files));
}
for (const input of document.querySelectorAll("form[data-auto] :is(select, [type=checkbox])")) {
  input.addEventListener("change", () => input.form.requestSubmit());
}
// A page that takes time to compute: the one before says so until it comes.
const busy = document.getElementById("busy");
let waiting = 0;
const wait = () => { waiting = setTimeout(() => { busy.hidden = false; busy.scrollIntoView({ block: "nearest" }); }, 150); };
document.addEventListener("submit", (event) => { if (!event.target.matches("[data-saves], [method=dialog]")) wait(); });  // a file is saved: the page stays
document.addEventListener("click", (event) => {
  if (event.target.closest("a[href]") && !(event.ctrlKey || event.metaKey || event.shiftKey)) wait();
});
window.addEventListener("pageshow", () => { clearTimeout(waiting); busy.hidden = true; });
// What is typed or decided is kept at once, and before another page is opened.
for (const kept of document.querySelectorAll("#names, #labels")) {
  let changed = false;
  const send = () => {
    if (changed) navigator.sendBeacon(`${kept.getAttribute("action")}/keep`, new URLSearchParams(new FormData(kept)));
    changed = false;
  };
  for (const field of kept.elements) field.addEventListener("input", () => { changed = true; });
  document.addEventListener("change", send);
  window.addEventListener("beforeunload", send);
}
