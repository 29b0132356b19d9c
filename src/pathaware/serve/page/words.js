// The page's language: the one that was chosen, else the browser's, else English.

import de from "/texts/de.js";
import en from "/texts/en.js";

const LANGUAGES = { en, de };
const preferred = [localStorage.getItem("language"), ...navigator.languages.map((each) => each.split("-")[0])];
export const language = preferred.find((each) => each in LANGUAGES) ?? "en";

/** A text in the page's language. */
export function t(key, ...values) {
  const text = LANGUAGES[language][key];
  if (text === undefined) throw new Error(`There is no text “${key}” in ${language}.`);
  return typeof text === "function" ? text(...values) : text;
}

/** Writes the texts of the document, and offers the other languages. */
export function writeTexts(choice) {
  document.documentElement.lang = language;
  const roots = [document, ...[...document.querySelectorAll("template")].map((each) => each.content)];
  for (const root of roots) {
    for (const element of root.querySelectorAll("[data-text]")) element.textContent = t(element.dataset.text);
    for (const element of root.querySelectorAll("[data-label]")) element.ariaLabel = t(element.dataset.label);
  }
  for (const [key, texts] of Object.entries(LANGUAGES)) choice.append(new Option(texts.language, key, false, key === language));
}

export const choose = (key) => localStorage.setItem("language", key);
