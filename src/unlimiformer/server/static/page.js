// The page: a list of documents, questions about the selected one, and its text with the passages of an answer.

import { SourceView, createElement, renderAnswer, renderPassages } from "./highlight.js";

const byId = (id) => document.getElementById(id);
// `checked`: ids of documents that are asked together. `turns`: what was asked before about the same documents.
const state = { selected: null, answering: null, documents: new Map(), checked: new Set(), turns: [], turnsOf: "", started: new Map() };
const sourceView = new SourceView(byId("text"), byId("strip"));

function showMessage(text, isError = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("error", isError);
}

// Requests

const JSON_HEADERS = { "Content-Type": "application/json" };
let tokenRequest = null;

async function request(path, options = {}) {
  const token = sessionStorage.getItem("token");
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) {
    tokenRequest ??= askForToken().finally(() => { tokenRequest = null; });
    await tokenRequest;
    return request(path, options);
  }
  if (!response.ok) {
    const body = await response.text();
    let detail = body;
    try { detail = JSON.parse(body).detail; } catch { /* plain text */ }
    throw new Error(typeof detail === "string" ? detail : JSON.stringify(detail));
  }
  return response;
}

function askForToken() {
  return new Promise((resolve, reject) => {
    byId("token-dialog").addEventListener("close", () => {
      if (!byId("token").value) { reject(new Error("a token is required; reload the page to enter it")); return; }
      sessionStorage.setItem("token", byId("token").value);
      byId("token").value = "";
      resolve();
    }, { once: true });
    byId("token-dialog").showModal();
  });
}

// Parses server-sent events; EventSource could not send the token.
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    for (let end = buffer.indexOf("\n\n"); end >= 0; end = buffer.indexOf("\n\n")) {
      const [kind, data] = buffer.slice(0, end).split("\n");
      buffer = buffer.slice(end + 2);
      if (data === undefined) continue; // a comment, which keeps the connection
      yield { kind: kind.slice("event: ".length), content: JSON.parse(data.slice("data: ".length)) };
    }
  }
}

// Documents: one stream reports all of them

async function watchDocuments() {
  for (;;) {
    try {
      for await (const { content } of readEvents(await request("/api/progress"))) showDocuments(content);
    } catch (error) { showMessage(`The server does not respond (${error.message}); trying again …`, true); }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

function showDocuments(list) {
  const items = list.map((doc) => {
    const item = byId(`document-${doc.id}`) ?? createDocumentItem(doc);
    showDocumentState(item.querySelector(".state"), doc);
    return item;
  });
  const current = byId("documents").children;
  if (items.length !== current.length || items.some((item, index) => item !== current[index])) {
    byId("documents").replaceChildren(...items);
  }
  if (state.selected) {
    const updated = list.find((doc) => doc.id === state.selected.id);
    if (updated) state.selected = updated;
    else if (state.documents.has(state.selected.id)) clearSelection();
  }
  state.documents = new Map(list.map((doc) => [doc.id, doc]));
  if (!state.selected && list.length) selectDocument(list[list.length - 1]);
  markSelected(); // a document that was just added is selected before it is listed
  updateButtons();
}

function createDocumentItem(doc) {
  const check = createElement("input", { type: "checkbox", title: "Ask together with others", onchange: () => {
    if (check.checked) state.checked.add(doc.id); else state.checked.delete(doc.id);
    updateButtons();
  } });
  check.setAttribute("aria-label", `Ask ${doc.name} together with others`);
  const select = createElement("button", { className: "select", type: "button", textContent: doc.name, onclick: () => selectDocument(doc) });
  const remove = createElement("button", { type: "button", textContent: "✕", title: "Delete", onclick: () => deleteDocument(doc) });
  remove.setAttribute("aria-label", `Delete ${doc.name}`);
  return createElement("li", { id: `document-${doc.id}` }, check, select, remove, createElement("span", { className: "state" }));
}

function showDocumentState(element, doc) {
  if (doc.state === "ready") element.textContent = `${(doc.tokens ?? 0).toLocaleString()} tokens`;
  else if (doc.state === "failed") element.textContent = `Indexing failed: ${doc.error}`;
  else if (doc.error) element.textContent = `Waiting: ${doc.error}`;
  else if (doc.of) {
    const bar = createElement("progress", { max: doc.of, value: doc.done });
    bar.setAttribute("aria-label", "Indexing progress");
    element.replaceChildren(bar, `Indexing ${doc.done.toLocaleString()} of ${doc.of.toLocaleString()} windows${remainingTime(doc)}`);
  } else element.textContent = doc.state === "checking" ? "Being checked" : "Waiting to be indexed";
}

// The time that is left, from the windows that were indexed since this page first saw the document.
function remainingTime(doc) {
  const now = performance.now();
  if (!state.started.has(doc.id)) state.started.set(doc.id, { done: doc.done, at: now });
  const { done, at } = state.started.get(doc.id);
  if (doc.done - done < 2) return "";
  const seconds = Math.round((now - at) / 1000 / (doc.done - done) * (doc.of - doc.done));
  return seconds < 60 ? `, about ${Math.max(1, seconds)} s left` : `, about ${Math.round(seconds / 60)} min left`;
}

// The documents that the next question is about.
function askedDocuments() {
  const checked = [...state.checked].map((id) => state.documents.get(id)).filter(Boolean);
  return checked.length > 1 ? checked : state.selected ? [state.selected] : [];
}

async function selectDocument(doc) {
  state.selected = state.documents.get(doc.id) ?? doc;
  markSelected();
  updateButtons();
  sourceView.highlight([]);
  try {
    const text = await (await request(`/api/documents/${doc.id}/text`)).text();
    if (state.selected?.id === doc.id) sourceView.setText(text);
  } catch (error) { showMessage(error.message, true); }
}

function markSelected() {
  for (const item of byId("documents").children) item.setAttribute("aria-current", String(item.id === `document-${state.selected?.id}`));
}

function clearSelection() {
  state.selected = null;
  sourceView.setText("");
}

async function deleteDocument(doc) {
  if (!confirm(`Delete ${doc.name}?`)) return;
  try { await request(`/api/documents/${doc.id}`, { method: "DELETE" }); } catch (error) { showMessage(error.message, true); }
}

async function addDocument(path, options) {
  try {
    const doc = await (await request(path, { method: "POST", ...options })).json();
    await selectDocument(doc);
    showMessage(`Indexing ${doc.name}`);
  } catch (error) { showMessage(error.message, true); }
}

function uploadFile(file) {
  const body = new FormData();
  body.append("file", file);
  return addDocument("/api/files", { body });
}

// Questions

function updateButtons() {
  const asked = askedDocuments();
  const canAsk = asked.length > 0 && asked.every((doc) => doc.state === "ready") && !state.answering;
  byId("send").disabled = !canAsk;
  byId("summary").disabled = !canAsk || asked.length > 1;
  byId("cancel").hidden = !state.answering;
  byId("selected-name").textContent = asked.map((doc) => doc.name).join(", ") || "a document";
  byId("new-conversation").hidden = !state.turns.length;
}

async function ask(question) {
  const documents = askedDocuments(), doc = documents[0], asked = documents.map((item) => item.id).join();
  if (state.turnsOf !== asked) { state.turns = []; state.turnsOf = asked; }
  const answerElement = createElement("p", { className: "answer" });
  const item = createElement("li", {}, createElement("p", { className: "question", textContent: question ?? "Summary" }), answerElement);
  byId("answers").prepend(item);
  state.answering = { id: null };
  updateButtons();
  showMessage("Generating …");
  try {
    const turns = state.turns.slice(-1), several = documents.length > 1;
    const fields = several ? { documents: documents.map((item) => item.id), question, turns } : { question, turns, compare: byId("compare").checked };
    const path = several ? "/api/answers" : `/api/documents/${doc.id}/answers`;
    const response = await request(path, { method: "POST", body: JSON.stringify(fields), headers: JSON_HEADERS });
    for await (const { kind, content } of readEvents(response)) {
      if (kind === "asked") state.answering.id = content.id;
      else if (kind === "text") answerElement.textContent += content;
      else if (kind === "done") {
        showAnswer(item, answerElement, content, doc);
        if (question !== null) state.turns.push({ question: content.question ?? question, answer: content.text });
      }
      else throw new Error(content);
    }
  } catch (error) { showMessage(error.message, true); if (!answerElement.textContent) answerElement.textContent = "–"; }
  state.answering = null;
  updateButtons();
}

function showAnswer(item, answerElement, answer, doc) {
  if (answer.question) answerElement.before(createElement("p", { className: "understood", textContent: answer.question }));
  showMessage(answer.stopped ? `Stopped: ${answer.stopped}` : `Answered in ${answer.seconds.toFixed(1)} s`);
  const provenance = answer.provenance, highlight = (passages, jump) => highlightPassages(answer, doc, passages, jump);
  item.append(renderTools(item.querySelector(".question").textContent, answer, doc));
  answerElement.replaceChildren(...(provenance?.sentences ? renderAnswer(provenance, highlight) : [answer.text]));
  if (answer.truncated !== null) item.append(createElement("p", { className: "truncated", textContent: `Truncated: ${answer.truncated}` }));
  if (!provenance) return;
  const isSingle = !answer.documents?.length;
  const drawHistogram = () => { if (isSingle && state.selected?.id === doc.id) sourceView.drawHistogram(provenance.histogram); };
  item.addEventListener("focusin", drawHistogram);
  item.addEventListener("pointerenter", drawHistogram);
  item.append(renderPassages(provenance, highlight));
  drawHistogram();
  highlight(provenance.passages.slice(0, 1), !isSingle || state.selected?.id === doc.id);
}

// Passages of several documents are counted through all of them; the first one decides which document is shown.
function highlightPassages(answer, doc, passages, jump) {
  if (!answer.documents?.length || !passages.length) return highlightInDocument(doc, passages, jump);
  const places = answer.documents, of = (passage) => places.findLast((place) => place.start <= passage.start);
  const place = of(passages[0]), shown = passages.filter((passage) => of(passage) === place);
  const moved = shown.map((passage) => ({ ...passage, start: passage.start - place.start, end: passage.end - place.start }));
  return highlightInDocument({ id: place.id, ...state.documents.get(place.id) }, moved, jump);
}

// An answer with its sources, as Markdown.
function asMarkdown(question, answer, doc) {
  const sources = (answer.provenance?.passages ?? []).map((passage, index) => {
    const place = passage.location ?? `${Math.round(100 * passage.start / answer.provenance.characters)} % into the document`;
    return `${index + 1}. ${answer.documents?.length ? "" : `${doc.name}, `}${place}: “${passage.text.replace(/\s+/g, " ").trim()}”`;
  });
  return `**${question}**\n\n${answer.text}\n${sources.length ? `\nSources:\n\n${sources.join("\n")}\n` : ""}`;
}

function renderTools(question, answer, doc) {
  const text = asMarkdown(question, answer, doc);
  const copy = createElement("button", { type: "button", textContent: "Copy", onclick: async () => {
    try { await navigator.clipboard.writeText(text); showMessage("Copied with its sources"); } catch (error) { showMessage(error.message, true); }
  } });
  const href = `data:text/markdown;charset=utf-8,${encodeURIComponent(text)}`;
  const link = createElement("a", { textContent: "Download", download: "answer.md", href });
  return createElement("p", { className: "tools" }, copy, link);
}

async function highlightInDocument(doc, passages, jump) {
  if (state.selected?.id !== doc.id) {
    if (!jump || !state.documents.has(doc.id)) return;
    await selectDocument(doc);
  }
  sourceView.highlight(passages, jump);
  if (jump) byId("text").scrollIntoView({ block: "nearest" });
}

// User input

byId("file").onchange = async () => {
  const files = [...byId("file").files];
  byId("file").value = "";  // before they are sent: files that are chosen meanwhile would be added to these
  for (const file of files) await uploadFile(file);
};
byId("new-conversation").onclick = () => { state.turns = []; updateButtons(); };
for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => { event.preventDefault(); byId("drop").classList.add("dragging"); });
}
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) byId("drop").classList.remove("dragging"); });
document.addEventListener("drop", (event) => {
  event.preventDefault();
  byId("drop").classList.remove("dragging");
  const files = [...event.dataTransfer.files];
  (async () => { for (const file of files) await uploadFile(file); })();
});
byId("paste").onsubmit = (event) => {
  event.preventDefault();
  const body = JSON.stringify({ name: byId("paste-name").value, text: byId("paste-text").value });
  addDocument("/api/documents", { body, headers: JSON_HEADERS });
};
byId("ask").onsubmit = (event) => {
  event.preventDefault();
  const question = byId("question").value.trim();
  if (question) ask(question);
};
byId("question").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!byId("send").disabled) byId("ask").requestSubmit();
};
byId("summary").onclick = () => ask(null);
byId("cancel").onclick = () => {
  if (state.answering?.id) request(`/api/answers/${state.answering.id}`, { method: "DELETE" }).catch(() => {});
};

try {
  const status = await (await request("/api/status")).json();
  byId("model").textContent = `${status.model} · context length of the plain model: ${status.context_length.toLocaleString()} tokens`;
  watchDocuments();
} catch (error) { showMessage(error.message, true); }
