"""Commands of tasks: speech to text, translation, vision-language, embeddings, reranking."""
