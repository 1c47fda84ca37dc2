"""Records to HTML, Markdown, JSON and JUnit."""
