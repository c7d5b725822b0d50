// Classifies images with the model embedded in this page. Nothing is sent anywhere.
"use strict";

const facts = JSON.parse(document.getElementById("facts").textContent);
const state = document.getElementById("state");
const picture = document.getElementById("picture");
const [height, width, channels] = facts.size;
let camera = null;

function bytes(base64) {
  const text = atob(base64);
  const found = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
  return found;
}

async function load() {
  const started = performance.now();
  const model = await loadModel();
  // The first prediction compiles the operations.
  await model.predict(new Float32Array(height * width * channels));
  const ms = performance.now() - started;
  state.textContent = `Ready after ${(ms / 1000).toFixed(1)} s (${model.runtime}).`;
  return model;
}

/** Returns the pixels of a drawable from 0 to 255, as the training data has them. */
function pixelsOf(drawable, isJpeg) {
  const size = [drawable.videoWidth || drawable.width, drawable.videoHeight || drawable.height];
  const context = new OffscreenCanvas(...size).getContext("2d", { willReadFrequently: true });
  context.drawImage(drawable, 0, 0);
  const { data } = context.getImageData(0, 0, ...size);
  if (channels === 1) {
    // The luma of JPEG files; TensorFlow's decoder gives the same.
    for (let i = 0; i < data.length; i += 4) {
      data[i] = 0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2];
    }
  }
  return resized(...(isJpeg && facts.shrinks ? shrunk(data, ...size) : [data, ...size]));
}

/**
 * Averages blocks of RGBA data if 1/2, 1/4 or 1/8 of the size still covers that of the model. Then
 * load() decodes a JPEG at this scale, with values that differ by about 1.
 */
function shrunk(data, fromWidth, fromHeight) {
  const sizeAt = (ratio) => [Math.ceil(fromWidth / ratio), Math.ceil(fromHeight / ratio)];
  const ratio = [8, 4, 2, 1].find((each) => sizeAt(each)[0] >= width && sizeAt(each)[1] >= height);
  if (!ratio) return [data, fromWidth, fromHeight];
  const [columns, rows] = sizeAt(ratio);
  const found = new Uint8ClampedArray(columns * rows * 4);
  for (let at = 0; at < found.length; at++) {
    const top = Math.floor(at / 4 / columns) * ratio;
    const left = (Math.floor(at / 4) % columns) * ratio;
    let [sum, count] = [0, 0];
    for (let y = top; y < Math.min(top + ratio, fromHeight); y++) {
      for (let x = left; x < Math.min(left + ratio, fromWidth); x++, count++) {
        sum += data[(y * fromWidth + x) * 4 + (at % 4)];
      }
    }
    found[at] = sum / count;
  }
  return [found, columns, rows];
}

/** Resizes RGBA data like tf.image.resize, with the same rounding. */
function resized(data, fromWidth, fromHeight) {
  const places = facts.resize === "nearest" ? nearest : between;
  const [rows, columns] = [places(fromHeight, height), places(fromWidth, width)];
  const found = new Float32Array(height * width * channels);
  const mixed = (a, b, share) => Math.fround(a + Math.fround(Math.fround(b - a) * share));
  let at = 0;
  for (const [top, bottom, down] of rows) {
    for (const [left, right, across] of columns) {
      for (let c = 0; c < channels; c++) {
        const value = (row, column) => data[(row * fromWidth + column) * 4 + c];
        const above = mixed(value(top, left), value(top, right), across);
        const below = mixed(value(bottom, left), value(bottom, right), across);
        found[at++] = mixed(above, below, down);
      }
    }
  }
  return found;
}

/** Returns for each target position two source positions, and the share of the second. */
function between(from, to) {
  const scale = Math.fround(from / to);
  return Array.from({ length: to }, (_, i) => {
    const place = Math.fround(Math.fround((i + 0.5) * scale) - 0.5);
    const low = Math.floor(place);
    const last = from - 1;
    return [Math.max(low, 0), Math.min(Math.ceil(place), last), Math.fround(place - low)];
  });
}

function nearest(from, to) {
  const scale = Math.fround(from / to);
  return Array.from({ length: to }, (_, i) => {
    const place = Math.min(Math.floor(Math.fround((i + 0.5) * scale)), from - 1);
    return [place, place, 0];
  });
}

async function classify(drawable, isJpeg) {
  const model = await loading;
  const started = performance.now();
  const values = await model.predict(pixelsOf(drawable, isJpeg));
  const ms = performance.now() - started;
  show(values);
  state.textContent = `${ms.toFixed(0)} ms (${model.runtime})`;
  return values;
}

function show(values) {
  const scores = document.getElementById("scores");
  const order = values.map((_, i) => i).sort((a, b) => values[b] - values[a]).slice(0, 10);
  scores.replaceChildren(
    ...order.map((index) => {
      const row = document.createElement("div");
      row.className = "score";
      const name = document.createElement("span");
      name.textContent = facts.labels ? facts.labels[index] : `output ${index}`;
      const bar = document.createElement("div");
      bar.className = "bar";
      bar.style.width = `${Math.max(0, Math.min(1, values[index])) * 100}%`;
      const value = document.createElement("span");
      value.textContent = values[index].toFixed(3);
      row.append(name, bar, value);
      return row;
    }),
  );
}

async function classifyFile(file) {
  stopCamera();
  let image = null;
  try {
    image = await createImageBitmap(file, { premultiplyAlpha: "none", colorSpaceConversion: "none" });
  } catch (error) {
    state.textContent = `${file.name} cannot be read as an image: ${error.message}`;
    return null;
  }
  draw(image);
  const start = new Uint8Array(await file.slice(0, 3).arrayBuffer());
  return classify(image, [0xff, 0xd8, 0xff].every((byte, i) => start[i] === byte));
}

function draw(drawable) {
  picture.width = drawable.videoWidth || drawable.width;
  picture.height = drawable.videoHeight || drawable.height;
  picture.getContext("2d").drawImage(drawable, 0, 0);
  picture.style.display = "block";
}

function stopCamera() {
  if (camera) camera.getTracks().forEach((track) => track.stop());
  camera = null;
}

async function useCamera() {
  if (camera) return stopCamera();
  const video = document.createElement("video");
  try {
    camera = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    state.textContent = `The camera cannot be used: ${error.message}`;
    return;
  }
  video.srcObject = camera;
  await video.play();
  while (camera) {
    draw(video);
    await classify(video, true); // as a photograph of it
    await new Promise(requestAnimationFrame);
  }
}

const drop = document.getElementById("drop");
document.getElementById("file").addEventListener("change", (event) => {
  if (event.target.files.length) classifyFile(event.target.files[0]);
});
document.getElementById("camera").addEventListener("click", useCamera);
for (const name of ["dragover", "dragleave", "drop"]) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragover");
    if (name === "drop" && event.dataTransfer.files.length) classifyFile(event.dataTransfer.files[0]);
  });
}
window.addEventListener("unhandledrejection", ({ reason }) => {
  state.textContent = `The model cannot be run: ${reason.message}`;
});
const loading = load();
