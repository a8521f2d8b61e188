// Copies: what is kept of each group. Choices outlive the page; they are remembered by the group's images.
const running = document.getElementById("running"), copies = document.getElementById("copies");
if (running) {
  const look = async () => {
    try {
      const state = await (await fetch("/copies/state")).json();
      if (state.phase !== "running") { location.reload(); return; }
      running.querySelector("output").textContent = state.read.toLocaleString("en");
      const bar = running.querySelector("progress");
      bar.max = state.images || 1;
      bar.value = state.read;
      setTimeout(look, 1000);
    } catch {
      running.querySelector("output").textContent = "the page is closed; after";
    }
  };
  setTimeout(look, 500);
}
if (copies) {
  const name = `copies of ${location.origin}`, told = document.getElementById("told");
  const groups = [...copies.querySelectorAll(".group")];
  let chosen = {};  // by the key of a group, the places of what is kept, where that is not what was suggested
  try { chosen = JSON.parse(localStorage.getItem(name)) || {}; } catch { chosen = {}; }
  const boxes = (group) => [...group.querySelectorAll("input[type=checkbox]")];
  const kept = (group) => boxes(group).flatMap((box, place) => (box.checked ? [place] : []));
  const draw = (group) => {
    for (const box of boxes(group)) {
      const card = box.closest(".card");
      card.classList.toggle("kept", box.checked);
      card.querySelector(".pick").setAttribute("aria-pressed", box.checked);
    }
  };
  const count = () => { document.getElementById("forget").hidden = !Object.keys(chosen).length; };
  const set = (group, places) => {
    boxes(group).forEach((box, place) => { box.checked = places.includes(place); });
    draw(group);
  };
  const choose = (group, places) => {
    if (!places.length) {
      told.textContent = "One image of each group stays: choose the other one first.";
      set(group, kept(group).length ? kept(group) : last.get(group));
      return;
    }
    set(group, places);
    last.set(group, places);
    const suggested = boxes(group).flatMap((box, place) => (box.defaultChecked ? [place] : []));
    if (String(places) === String(suggested)) delete chosen[group.dataset.key];
    else chosen[group.dataset.key] = places;
    localStorage.setItem(name, JSON.stringify(chosen));
    const title = group.querySelector("legend").textContent.split(":")[0];
    told.textContent = `${title}: kept ${places.length === 1 ? "is" : "are"} ${places.map((place) => place + 1).join(", ")} of ${boxes(group).length}.`;
    count();
  };
  const last = new Map();  // what is kept of each group
  for (const group of groups) {
    const remembered = chosen[group.dataset.key];
    if (Array.isArray(remembered) && remembered.some((place) => place < boxes(group).length)) set(group, remembered);
    else set(group, boxes(group).flatMap((box, place) => (box.defaultChecked ? [place] : [])));
    last.set(group, kept(group));
    const all = group.querySelector(".all");
    all.hidden = false;
    all.addEventListener("click", () => choose(group, boxes(group).map((_, place) => place)));
    boxes(group).forEach((box, place) => {
      box.addEventListener("change", () => choose(group, kept(group)));
      box.closest(".card").querySelector(".pick").addEventListener("click", () => choose(group, [place]));
    });
  }
  count();
  document.getElementById("forget").addEventListener("click", () => {
    localStorage.removeItem(name);
    chosen = {};
    for (const group of groups) {
      set(group, boxes(group).flatMap((box, place) => (box.defaultChecked ? [place] : [])));
      last.set(group, kept(group));
    }
    told.textContent = "The suggested images are kept.";
    count();
  });
  copies.addEventListener("keydown", (event) => {
    const group = event.target.closest(".group");
    if (!group || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "a") {
      choose(group, boxes(group).map((_, place) => place));
    } else if (event.key === " " && event.target.matches(".pick")) {
      event.preventDefault();
      const box = event.target.closest(".card").querySelector("input");
      box.checked = !box.checked;
      choose(group, kept(group));
    }
  });
  // What was chosen of groups on other pages is saved too.
  copies.addEventListener("submit", () => {
    for (const old of copies.querySelectorAll(".other-page")) old.remove();
    const here = new Set(groups.map((group) => group.dataset.key));
    for (const [key, places] of Object.entries(chosen)) {
      if (here.has(key)) continue;
      for (const place of places) {
        const field = document.createElement("input");
        Object.assign(field, { type: "hidden", name: "keep", value: `${key}.${place}`, className: "other-page" });
        copies.append(field);
      }
    }
  });
}
