// Pictures with captions. Names come from data: they are set as text, never as HTML.
const grid = element.querySelector(".pml-grid");

function picture(item, size) {
  const image = document.createElement("img");
  image.loading = "lazy";
  image.src = item.src || `thumbnail/${item.which}/${item.number}/${size}`;
  image.alt = item.title;
  image.title = item.title;
  return image;
}

function card(item, size) {
  const figure = document.createElement("figure");
  figure.className = item.mark === true ? "right" : item.mark === false ? "wrong" : item.query ? "query" : "";
  const pictures = document.createElement("div");
  pictures.className = "pictures";
  for (const each of item.several || [item]) pictures.append(picture(each, size));
  figure.append(pictures);
  const caption = document.createElement("figcaption");
  item.lines.forEach((line) => {
    const part = document.createElement("div");
    part.textContent = line;
    part.title = line;
    caption.append(part);
  });
  figure.append(caption);
  if (item.number !== undefined || item.cluster !== undefined) {
    figure.tabIndex = 0;
    figure.setAttribute("role", "button");
    const chosen = (number) => trigger("click", { which: item.which, number: number, cluster: item.cluster });
    figure.addEventListener("click", (event) => {
      const images = [...pictures.children];
      const place = Math.max(0, images.indexOf(event.target));
      chosen(item.several && item.cluster === undefined ? item.several[place].number : item.number);
    });
    figure.addEventListener("keydown", (event) => { if (event.key === "Enter") chosen(item.number); });
  }
  return figure;
}

function draw() {
  grid.replaceChildren();
  for (const part of props.value || []) {
    const section = document.createElement("section");
    const title = document.createElement("h3");
    title.textContent = part.title;
    section.append(title);
    const items = document.createElement("div");
    items.className = `items ${part.kind || ""}`;
    for (const item of part.items) items.append(card(item, part.size || 160));
    section.append(items);
    grid.append(section);
  }
}

draw();
watch("value", draw);
