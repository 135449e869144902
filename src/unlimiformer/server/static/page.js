// The page: documents and questions.

import { Source, listed, make, spoken } from "./highlight.js";

const $ = (id) => document.getElementById(id);
const state = { chosen: null, answering: null, listed: new Map() };
const source = new Source($("text"), $("strip"));

function say(text, bad = false) {
  $("message").textContent = text;
  $("message").classList.toggle("bad", bad);
}

let asking = null;

async function call(path, options = {}) {
  const token = sessionStorage.getItem("token");
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) {
    asking ??= askForToken().finally(() => { asking = null; });
    await asking;
    return call(path, options);
  }
  if (!response.ok) {
    const told = await response.text();
    let detail = told;
    try { detail = JSON.parse(told).detail; } catch { /* plain text */ }
    throw new Error(typeof detail === "string" ? detail : JSON.stringify(detail));
  }
  return response;
}

function askForToken() {
  return new Promise((done, failed) => {
    $("token-dialog").addEventListener("close", () => {
      if (!$("token").value) { failed(new Error("a token is needed; load the page again to give it")); return; }
      sessionStorage.setItem("token", $("token").value);
      $("token").value = "";
      done();
    }, { once: true });
    $("token-dialog").showModal();
  });
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    for (let end = held.indexOf("\n\n"); end >= 0; end = held.indexOf("\n\n")) {
      const [kind, data] = held.slice(0, end).split("\n");
      held = held.slice(end + 2);
      yield { kind: kind.slice(7), content: JSON.parse(data.slice(6)) };
    }
  }
}

// Documents: one stream tells of all of them

async function watch() {
  for (;;) {
    try {
      for await (const { content } of events(await call("/api/progress"))) show(content);
    } catch (error) { say(`The server does not answer (${error.message}); trying again …`, true); }
    await new Promise((done) => setTimeout(done, 2000));
  }
}

function show(list) {
  const items = list.map((each) => {
    const item = $(`document-${each.id}`) ?? shelved(each);
    tell(item.querySelector(".state"), each);
    return item;
  });
  if (items.length !== $("documents").children.length || items.some((item, place) => item !== $("documents").children[place])) {
    $("documents").replaceChildren(...items);
  }
  if (state.chosen) {
    const now = list.find((each) => each.id === state.chosen.id);
    if (now) state.chosen = now;
    else if (state.listed.has(state.chosen.id)) leave();
  }
  state.listed = new Map(list.map((each) => [each.id, each]));
  if (!state.chosen && list.length) choose(list[list.length - 1]);
  allowAsking();
}

function shelved(each) {
  const open = make("button", { className: "open", type: "button", textContent: each.name, onclick: () => choose(each) });
  const remove = make("button", { type: "button", textContent: "✕", title: "Delete", onclick: () => forget(each) });
  remove.setAttribute("aria-label", `Delete ${each.name}`);
  return make("li", { id: `document-${each.id}` }, open, remove, make("span", { className: "state" }));
}

function tell(told, now) {
  if (now.state === "ready") told.textContent = `${(now.tokens ?? 0).toLocaleString()} tokens`;
  else if (now.state === "failed") told.textContent = `could not be read: ${now.error}`;
  else if (now.of) {
    const bar = make("progress", { max: now.of, value: now.done });
    bar.setAttribute("aria-label", "read so far");
    told.replaceChildren(bar, `window ${now.done} of ${now.of}`);
  } else told.textContent = "waits to be read";
}

async function choose(each) {
  state.chosen = state.listed.get(each.id) ?? each;
  for (const item of $("documents").children) item.setAttribute("aria-current", String(item.id === `document-${each.id}`));
  $("asked-of").textContent = each.name;
  allowAsking();
  source.light([]);
  try {
    const text = await (await call(`/api/documents/${each.id}/text`)).text();
    if (state.chosen?.id === each.id) source.show(text);
  } catch (error) { say(error.message, true); }
}

function leave() {
  state.chosen = null;
  source.show("");
  $("asked-of").textContent = "a document";
}

async function forget(each) {
  if (!confirm(`Delete ${each.name}?`)) return;
  try { await call(`/api/documents/${each.id}`, { method: "DELETE" }); } catch (error) { say(error.message, true); }
}

async function add(send) {
  try {
    const added = await (await send()).json();
    await choose(added);
    say(`${added.name} is being read`);
  } catch (error) { say(error.message, true); }
}

function upload(file) {
  const form = new FormData();
  form.append("file", file);
  return add(() => call("/api/files", { method: "POST", body: form }));
}

// Questions

function allowAsking() {
  const able = state.chosen?.state === "ready" && !state.answering;
  $("send").disabled = $("summary").disabled = !able;
  $("cancel").hidden = !state.answering;
}

async function ask(question) {
  const of = state.chosen, answer = make("p", { className: "answer" });
  const item = make("li", {}, make("p", { className: "asked", textContent: question ?? "Summary" }), answer);
  $("answers").prepend(item);
  state.answering = { id: null };
  allowAsking();
  say("Writing …");
  try {
    const body = JSON.stringify({ question, compare: $("compare").checked });
    const response = await call(`/api/documents/${of.id}/answers`, { method: "POST", body, headers: { "Content-Type": "application/json" } });
    for await (const { kind, content } of events(response)) {
      if (kind === "asked") state.answering.id = content.id;
      else if (kind === "text") answer.textContent += content;
      else if (kind === "done") finish(item, answer, content, of);
      else throw new Error(content);
    }
  } catch (error) { say(error.message, true); if (!answer.textContent) answer.textContent = "–"; }
  state.answering = null;
  allowAsking();
}

function finish(item, answer, told, of) {
  say(told.stopped ? `Stopped: ${told.stopped}` : `Answered in ${told.seconds.toFixed(1)} s`);
  const looked = told.provenance, light = (passages, jump) => lightIn(of, passages, jump);
  answer.replaceChildren(...(looked?.sentences ? spoken(looked, light) : [told.text]));
  if (told.truncated !== null) item.append(make("p", { className: "truncated", textContent: `Truncated: ${told.truncated}` }));
  if (!looked) return;
  const show = () => { if (state.chosen?.id === of.id) source.draw(looked.histogram); };
  item.addEventListener("focusin", show);
  item.addEventListener("pointerenter", show);
  item.append(listed(looked, light));
  show();
  if (state.chosen?.id === of.id) source.light(looked.passages.slice(0, 1), true);
}

async function lightIn(of, passages, jump) {
  if (state.chosen?.id !== of.id) {
    if (!jump || !state.listed.has(of.id)) return;
    await choose(of);
  }
  source.light(passages, jump);
  if (jump) $("text").scrollIntoView({ block: "nearest" });
}

// What users do

$("file").onchange = () => { if ($("file").files.length) upload($("file").files[0]); $("file").value = ""; };
for (const kind of ["dragenter", "dragover"]) document.addEventListener(kind, (event) => { event.preventDefault(); $("drop").classList.add("over"); });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").classList.remove("over"); });
document.addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  for (const file of event.dataTransfer.files) upload(file);
});
$("paste").onsubmit = (event) => {
  event.preventDefault();
  const body = JSON.stringify({ name: $("paste-name").value, text: $("paste-text").value });
  add(() => call("/api/documents", { method: "POST", body, headers: { "Content-Type": "application/json" } }));
};
$("ask").onsubmit = (event) => { event.preventDefault(); const asked = $("question").value.trim(); if (asked) ask(asked); };
$("question").onkeydown = (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); if (!$("send").disabled) $("ask").requestSubmit(); } };
$("summary").onclick = () => ask(null);
$("cancel").onclick = () => { if (state.answering?.id) call(`/api/answers/${state.answering.id}`, { method: "DELETE" }).catch(() => {}); };

try {
  const status = await (await call("/api/status")).json();
  $("model").textContent = `${status.model} · the plain model reads ${status.plain_window.toLocaleString()} tokens`;
  watch();
} catch (error) { say(error.message, true); }
