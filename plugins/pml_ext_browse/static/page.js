// Drop or paste a photograph: it goes into the form as if it had been chosen. Selections show at once.
const form = document.getElementById("drop");
if (form) {
  const input = form.querySelector("input[type=file]");
  const send = (files) => {
    if (!files.length) return;
    const one = new DataTransfer();
    one.items.add(files[0]);
    input.files = one.files;
    form.requestSubmit();
  };
  input.addEventListener("change", () => form.requestSubmit());
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
document.addEventListener("submit", (event) => { if (event.target.id !== "names") wait(); });  // a table is saved: the page stays
document.addEventListener("click", (event) => {
  if (event.target.closest("a[href]") && !(event.ctrlKey || event.metaKey || event.shiftKey)) wait();
});
window.addEventListener("pageshow", () => { clearTimeout(waiting); busy.hidden = true; });
// Names of clusters outlive a look into a cluster, until the tab is closed.
const names = document.getElementById("names");
if (names) {
  const key = `names of ${location.origin} ${document.title} ${names.elements.run.value} ${names.elements.clusters.value}`;
  const given = JSON.parse(sessionStorage.getItem(key) || "{}");
  for (const input of document.querySelectorAll(".named input")) {
    input.value = given[input.name] || "";
    input.addEventListener("input", () => {
      given[input.name] = input.value;
      sessionStorage.setItem(key, JSON.stringify(given));
    });
  }
}
