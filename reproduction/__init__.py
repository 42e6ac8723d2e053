"""The paper, reproduced: its studies, sections beside its numbers, its tables, our results, our pages."""
