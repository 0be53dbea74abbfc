"""What people see: a page (`html`), a terminal (`console`, `progress`), markdown and JSON, all from a record's values alone."""
