"""What the paper's studies print: ours beside the paper's numbers. A study names its sections as
`reproduction.sections.accuracies:main_results`; each takes the study's records, failed ones included.
"""
