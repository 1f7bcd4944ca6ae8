"use strict";
// The worker runs the program. It receives {settings, module}, where module is the compiled program if the page has it
// already, and then {client, action} for each button. It sends {module}, {progress}, {state} and {trouble}.
importScripts("wasm_exec.js");

// program compiles the program while it loads.
async function program() {
  const reply = await fetch("playground.wasm.gz");
  if (!reply.ok) throw new Error("playground.wasm.gz: " + reply.status + " " + reply.statusText);
  const size = Number(reply.headers.get("Content-Length"));
  let loaded = 0;
  const counted = new TransformStream({
    transform(chunk, out) {
      loaded += chunk.length;
      postMessage({progress: {loaded, size}});
      out.enqueue(chunk);
    },
  });
  let body = reply.body.pipeThrough(counted);
  // Some servers declare the file as encoded, and then the browser has decompressed it.
  const isDecompressed = (reply.headers.get("Content-Encoding") || "").includes("gzip");
  if (!isDecompressed) body = body.pipeThrough(new DecompressionStream("gzip"));
  return WebAssembly.compileStreaming(new Response(body, {headers: {"Content-Type": "application/wasm"}}));
}

async function begin(settings, module) {
  if (!module) {
    module = await program();
    postMessage({module});
  }
  const go = new Go();
  globalThis.redlatchChanged = text => postMessage({state: JSON.parse(text)});
  const ended = go.run(await WebAssembly.instantiate(module, go.importObject));
  ended.then(() => postMessage({trouble: "The program has ended. Please load the page again."}));
  const trouble = redlatchBegin(JSON.stringify(settings));
  if (trouble) postMessage({trouble});
}

onmessage = event => {
  const message = event.data;
  if (message.settings) {
    begin(message.settings, message.module).catch(err => postMessage({trouble: String(err)}));
    return;
  }
  const trouble = redlatchDo(message.client, message.action);
  if (trouble) console.warn(trouble); // the button was pressed twice
};
