// A map of images: points on a canvas, the nearest one's picture beside the pointer. Wheel: zoom; drag: move.
const box = element.querySelector(".pml-map"), canvas = box.querySelector("canvas");
const hover = box.querySelector(".hover"), legend = box.querySelector(".legend");
const paper = canvas.getContext("2d");
let scale = 1, left = 0, top_ = 0, near = -1, from = null, moved = false;

const points = () => (props.value || {}).points || [];
const side = () => Math.min(canvas.width, canvas.height) * 0.94;
const margin = (length) => (length - side()) / 2;
const place = ([x, y]) => [
  margin(canvas.width) + left + x * side() * scale,
  margin(canvas.height) + top_ + (1 - y) * side() * scale,
];

function draw() {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = box.clientWidth * ratio;
  canvas.height = 620 * ratio;
  paper.clearRect(0, 0, canvas.width, canvas.height);
  const groups = (props.value || {}).groups || [];
  points().forEach((point, index) => {
    const [x, y] = place(point);
    paper.beginPath();
    paper.arc(x, y, (index === near ? 8 : 4) * ratio, 0, 7);
    paper.fillStyle = groups[point[3]].color;
    paper.globalAlpha = index === near ? 1 : 0.8;
    paper.fill();
    if (index === near) { paper.lineWidth = 2 * ratio; paper.strokeStyle = "#1a202c"; paper.stroke(); }
  });
  paper.globalAlpha = 1;
}

function name() {
  legend.replaceChildren();
  for (const group of ((props.value || {}).groups || []).filter((group) => group.shown)) {
    const entry = document.createElement("span"), dot = document.createElement("i");
    dot.style.background = group.color;
    entry.append(dot, group.name);
    legend.append(entry);
  }
}

function show(event) {
  const ratio = window.devicePixelRatio || 1, edges = canvas.getBoundingClientRect();
  const [x, y] = [(event.clientX - edges.left) * ratio, (event.clientY - edges.top) * ratio];
  let best = 18 * ratio, index = -1;
  points().forEach((point, number) => {
    const [px, py] = place(point), apart = Math.hypot(px - x, py - y);
    if (apart < best) { best = apart; index = number; }
  });
  if (index !== near) {
    near = index;
    hover.replaceChildren();
    if (near >= 0) {
      const point = points()[near], image = document.createElement("img"), text = document.createElement("div");
      image.src = `thumbnail/${props.value.which}/${point[2]}/160`;
      text.textContent = point[4];
      hover.append(image, text);
    }
    draw();
  }
  hover.style.display = near >= 0 ? "block" : "none";
  const beyond = event.clientX - edges.left > edges.width - 220;
  hover.style.left = `${event.clientX - edges.left + (beyond ? -200 : 18)}px`;
  hover.style.top = `${Math.min(event.clientY - edges.top + 12, 420)}px`;
}

canvas.addEventListener("pointermove", (event) => {
  if (from && event.buttons) {
    const ratio = window.devicePixelRatio || 1;
    left += (event.clientX - from[0]) * ratio;
    top_ += (event.clientY - from[1]) * ratio;
    moved = moved || Math.hypot(event.clientX - from[0], event.clientY - from[1]) > 2;
    from = [event.clientX, event.clientY];
    draw();
  } else { from = null; show(event); }
});
canvas.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; moved = false; });
canvas.addEventListener("pointerleave", () => { near = -1; hover.style.display = "none"; draw(); });
canvas.addEventListener("click", () => {
  if (near >= 0 && !moved) trigger("click", { which: props.value.which, number: points()[near][2] });
});
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const ratio = window.devicePixelRatio || 1, edges = canvas.getBoundingClientRect();
  const x = (event.clientX - edges.left) * ratio - margin(canvas.width);
  const y = (event.clientY - edges.top) * ratio - margin(canvas.height);
  const next = Math.min(40, Math.max(1, scale * (event.deltaY < 0 ? 1.25 : 0.8)));
  left = x - ((x - left) * next) / scale;
  top_ = y - ((y - top_) * next) / scale;
  scale = next;
  if (scale === 1) { left = 0; top_ = 0; }
  draw();
}, { passive: false });

function renew() { scale = 1; left = 0; top_ = 0; near = -1; name(); draw(); }
new ResizeObserver(draw).observe(box);
renew();
watch("value", renew);
