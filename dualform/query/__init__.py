"""Questions to a run: slots in blocks, folded into answers, by selection and group."""
