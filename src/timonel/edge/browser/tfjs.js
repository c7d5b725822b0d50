// Runs the graph model in this page with TensorFlow.js.
"use strict";

/** Returns the runtime's name, and a function from pixels to output values. */
async function loadModel() {
  const { topology, weights, weightData } = facts.model;
  const model = await tf.loadGraphModel({
    load: async () => ({
      format: "graph-model",
      modelTopology: topology.modelTopology,
      signature: topology.signature,
      weightSpecs: weights,
      weightData: bytes(weightData).buffer,
    }),
  });
  const predict = async (pixels) => {
    const input = tf.tensor(pixels, [1, ...facts.size]);
    const found = model.predict({ [facts.input.name]: input });
    const output = found instanceof tf.Tensor ? found : Object.values(found)[0];
    const values = Array.from(await output.data());
    tf.dispose([input, found]);
    return values;
  };
  return { runtime: `TensorFlow.js, ${tf.getBackend()}`, predict };
}
