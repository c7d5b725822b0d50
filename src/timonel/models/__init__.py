"""Models: exporting them, checking and publishing versions, and looking into them."""
