"""What readers ask about past, present and other futures; nothing here changes the truth."""
