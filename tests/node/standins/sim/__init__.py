"""What the stand-ins of a GPU node share. Never shipped, and knows nothing of the product."""
