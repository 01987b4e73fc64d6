"""Arguments and results: which values a task takes, and how they become bytes and values again.

`signature` reads a function's parameters, `arguments` checks and encodes what is given for them. `coding` has the
codecs of an app, `codec` those that come with Prinia, `models` what there is to know of pydantic's. `times` and
`storable` say what cannot be stored, and where it is, `survival` what would arrive changed.
"""
