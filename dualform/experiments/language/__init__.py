"""Train the paper's language models on texts, and find the passages behind prompts."""
