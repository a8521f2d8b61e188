// A map of images: points on a canvas, the nearest one's picture beside the pointer. Wheel: zoom; drag: move.
const data = JSON.parse(document.getElementById("points").textContent);
const box = document.getElementById("map"), canvas = box.querySelector("canvas");
const hover = box.querySelector(".hover"), legend = box.querySelector(".legend");
const paper = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
let scale = 1, left = 0, top_ = 0, near = -1, from = null, moved = false;

const side = () => Math.min(canvas.width, canvas.height) * 0.94;
const margin = (length) => (length - side()) / 2;
const place = ([x, y]) => [
  margin(canvas.width) + left + x * side() * scale,
  margin(canvas.height) + top_ + (1 - y) * side() * scale,
];

// A disk, a square, a triangle, a diamond: corners in units of the disk's radius.
const SHAPES = [[], [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]], [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
  [[0, -1.3], [1.1, 0], [0, 1.3], [-1.1, 0]]];

function mark(context, x, y, radius, [, color, shape]) {
  context.beginPath();
  if (shape === 0) context.arc(x, y, radius, 0, 7);
  for (const [right, down] of SHAPES[shape]) context.lineTo(x + right * radius, y + down * radius);
  context.closePath();
  context.fillStyle = color;
  context.fill();
}

function draw() {
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  paper.clearRect(0, 0, canvas.width, canvas.height);
  data.points.forEach((point, index) => {
    const [x, y] = place(point);
    paper.globalAlpha = index === near ? 1 : 0.8;
    mark(paper, x, y, (index === near ? 8 : 4) * ratio, data.groups[point[3]]);
    if (index === near) { paper.lineWidth = 2 * ratio; paper.strokeStyle = getComputedStyle(box).color; paper.stroke(); }
  });
  paper.globalAlpha = 1;
}

function show(event) {
  const edges = canvas.getBoundingClientRect();
  const x = (event.clientX - edges.left) * ratio, y = (event.clientY - edges.top) * ratio;
  let best = 18 * ratio, index = -1;
  data.points.forEach((point, number) => {
    const [px, py] = place(point), apart = Math.hypot(px - x, py - y);
    if (apart < best) { best = apart; index = number; }
  });
  if (index !== near) {
    near = index;
    hover.replaceChildren();
    if (near >= 0) {
      const point = data.points[near], image = document.createElement("img"), text = document.createElement("div");
      image.src = `/thumbnail/${data.run}/${point[2]}/160`;
      image.alt = point[4];
      text.textContent = `${data.groups[point[3]][0]}\n${point[4]}`;
      hover.append(image, text);
    }
    draw();
  }
  hover.hidden = near < 0;
  const wide = event.clientX - edges.left;
  hover.style.left = `${wide > edges.width - 220 ? Math.max(0, wide - 200) : wide + 18}px`;
  hover.style.top = `${Math.min(event.clientY - edges.top + 12, edges.height - 200)}px`;
}

for (const group of data.groups.slice(0, data.legend)) {
  const entry = document.createElement("span"), dot = document.createElement("canvas");
  dot.width = dot.height = 24;
  mark(dot.getContext("2d"), 12, 12, 8, group);
  entry.append(dot, group[0]);
  legend.append(entry);
}
if (data.groups.length > data.legend) legend.append(`and ${data.groups.length - data.legend} more, whose marks repeat these`);

canvas.addEventListener("pointermove", (event) => {
  if (from && event.buttons) {
    left += (event.clientX - from[0]) * ratio;
    top_ += (event.clientY - from[1]) * ratio;
    moved = moved || Math.hypot(event.clientX - from[0], event.clientY - from[1]) > 2;
    from = [event.clientX, event.clientY];
    draw();
  } else { from = null; show(event); }
});
canvas.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; moved = false; show(event); });
canvas.addEventListener("pointerleave", () => { near = -1; hover.hidden = true; draw(); });
canvas.addEventListener("click", (event) => {
  show(event); // after a touch, which leaves before it clicks
  if (near >= 0 && !moved) location.href = `/?run=${data.run}&image=${data.points[near][2]}${data.part}`;
});
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const edges = canvas.getBoundingClientRect();
  const x = (event.clientX - edges.left) * ratio - margin(canvas.width);
  const y = (event.clientY - edges.top) * ratio - margin(canvas.height);
  const next = Math.min(40, Math.max(1, scale * (event.deltaY < 0 ? 1.25 : 0.8)));
  left = x - ((x - left) * next) / scale;
  top_ = y - ((y - top_) * next) / scale;
  scale = next;
  if (scale === 1) { left = 0; top_ = 0; }
  draw();
}, { passive: false });
new ResizeObserver(draw).observe(box);
