// Runs the flatbuffer in this page with LiteRT.js.
"use strict";

/** Creates LiteRT.js from the WebAssembly in this page; @litertjs/wasm-utils would load a file. */
async function createWasmLib(LiteRt) {
  const packed = new Blob([bytes(document.getElementById("wasm").textContent)]);
  const stream = packed.stream().pipeThrough(new DecompressionStream("gzip"));
  const wasmBinary = await new Response(stream).arrayBuffer();
  return new LiteRt(await ModuleFactory({ wasmBinary, printErr: console.debug }));
}

/** Returns the runtime's name, and a function from pixels to output values. */
async function loadModel() {
  await litert.loadLiteRt("");
  const content = bytes(facts.model);
  const model = await litert.loadAndCompile(content, { accelerator: "wasm" });
  const onGpu = litert.getWebGpuDevice() && (await gpuModel(content, model));
  return onGpu
    ? { runtime: "LiteRT.js, WebGPU", predict: (pixels) => run(onGpu, pixels) }
    : { runtime: "LiteRT.js, WebAssembly", predict: (pixels) => run(model, pixels) };
}

/** Returns the model on WebGPU; null if that fails or computes something else than `model`. */
async function gpuModel(content, model) {
  const noise = Float32Array.from({ length: height * width * channels }, (_, i) => (i * 7919) % 256);
  try {
    // float16, the default, changes scores.
    const options = { accelerator: "webgpu", gpuOptions: { precision: "fp32" } };
    const onGpu = await litert.loadAndCompile(content, options);
    const [expected, found] = [await run(model, noise), await run(onGpu, noise)];
    const isClose = (value, i) => Math.abs(value - expected[i]) <= 1e-4 * Math.max(1, Math.abs(value));
    return found.every(isClose) ? onGpu : null;
  } catch (error) {
    console.debug(error);
    return null;
  }
}

async function run(model, pixels) {
  const input = new litert.Tensor(encoded(pixels, facts.input), [1, ...facts.size]);
  const [output] = await model.run([input]);
  const values = decoded(await output.data(), facts.output);
  input.delete();
  output.delete();
  return values;
}

function encoded(values, { scale, zero_point }) {
  if (scale === null) return values;
  const limited = Uint8ClampedArray.from(values, (value) => value / scale + zero_point);
  return new Uint8Array(limited.buffer);
}

function decoded(values, { scale, zero_point }) {
  return Array.from(values, (value) => (scale === null ? value : (value - zero_point) * scale));
}
