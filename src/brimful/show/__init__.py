"""What brimful shows: values become sections (`sections`), and each view draws them: `console`,
`html`, `markdown`.
"""
