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
    // Loops, as those of recurrent layers, cannot be executed synchronously.
    const output = await model.executeAsync({ [facts.input.name]: input }, model.outputs[0].name);
    const values = Array.from(await output.data());
    tf.dispose([input, output]);
    return values;
  };
  return { runtime: `TensorFlow.js, ${tf.getBackend()}`, predict };
}
