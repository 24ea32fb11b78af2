"""What a run leaves behind: recorder, tables, accounts, stories, pages; for every driver."""
