"""The paper's language models: trained on text, asked about prompts, answered with passages."""
