"""The performance recipes of an installed Megatron-Bridge, as a catalogue from which jobs are planned without it.

``functions``  which ones there are, and looking one up by name
``columns``    what calling one gives: layout, architecture, environment, FLOPs
``parameters`` how many parameters that architecture has
``document``   the catalogue as JSON
``validation`` what Megatron's own validation says of each function, as JSON
``fields``     every field of the framework's configuration, and what it takes

``python -m llmb_train.catalogue OUT.json`` writes the catalogue of the engine it runs in: no GPU, no network;
``--validation`` writes the results of the validation, ``--fields`` the fields.
"""
