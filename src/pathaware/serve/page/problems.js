// What went wrong, in words and in place.

export async function attempt(place, doing) {
  place.textContent = "";
  try {
    return await doing();
  } catch (error) {
    tell(place, error);
    return undefined;
  }
}

export function tell(place, error, title = "") {
  const sentence = title ? `${title}: ${error.message}` : error.message;
  place.textContent = place.textContent ? `${place.textContent}\n${sentence}` : sentence;
}
