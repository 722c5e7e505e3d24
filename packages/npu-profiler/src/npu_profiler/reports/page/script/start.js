// Starts the page from the bytes of the trace, which are in the page or at the server.

const say = (text) => { byId("state").textContent = text; };

async function traceBytes() {
  const own = byId("trace");
  if (!own) return new Uint8Array(await (await fetched("trace")).arrayBuffer());
  const text = own.textContent.trim(), packed = new Uint8Array(text.length / 4 * 3 - (text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0));
  // A million characters at a time: four of them are three bytes.
  for (let from = 0, at = 0; from < text.length; from += 1 << 20) {
    const part = atob(text.slice(from, from + (1 << 20)));
    for (let i = 0; i < part.length; i++) packed[at++] = part.charCodeAt(i);
  }
  own.remove();
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(unpacked).arrayBuffer());
}

async function fetched(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

async function readTrace(bytes) {
  const reader = new TraceReader(bytes);
  while (!reader.readFor(40)) {
    say(`reading: ${Math.floor(reader.at / bytes.length * 100)} %`);
    await new Promise((resolve) => requestAnimationFrame(resolve));
  }
  return reader.finish();
}

async function start() {
  say("loading the trace");
  const trace = await readTrace(await traceBytes());
  const page = new Page(trace);
  page.listRows();
  listen(page, page.drawing);
  page.resize();
  window.page = page;
  const cut = trace.isComplete ? "" : "; the file has no end: its program was killed, or still runs";
  say(`${formatCount(trace.count)} events${cut}`);
  document.documentElement.dataset.ready = "timeline";
  const own = byId("report");
  try {
    showReport(own ? JSON.parse(own.textContent) : await (await fetched("report")).json());
  } catch (failure) {
    byId("summary").replaceChildren(element("dt", "no summary"), element("dd", failure.message));
  }
  document.documentElement.dataset.ready = "all";
}

start().catch((failure) => {
  say(`cannot show it: ${failure.message}`);
  document.documentElement.dataset.ready = "failed";
});
