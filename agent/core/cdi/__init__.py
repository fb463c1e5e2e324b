"""Link 6: CDI specs and the container toolkit."""
