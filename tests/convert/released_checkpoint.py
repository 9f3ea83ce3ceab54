"""Checkpoints as the released TensorFlow 1 code wrote them, for the tests of reading them."""

import json

from bertjax.convert import names
from bertjax.data import records
from bertjax.models import embedding_sharing


def save(variables, prefix):
    """Saves a graph's variables with tf.train.Saver."""
    tf = records.import_tensorflow()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = [
            tf.compat.v1.get_variable(name, initializer=value, use_resource=False)
            for name, value in variables.items()
        ]
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(made).save(session, str(prefix), write_state=False)


def variables_of(weights):
    """Returns the parameters under the names of the released code, which has shared ones once."""
    copies = embedding_sharing.copies(weights.params)
    params = {path: array for path, array in weights.params.items() if path not in copies}
    table = names.of_head(weights.family.released.names, weights.head)
    return names.to_theirs(params, names.in_a_row(table, weights.config.inner_group_num))


def write(weights, directory):
    """Writes the config, the checkpoint and the vocabulary of weights into a directory."""
    released, config = weights.family.released, weights.config
    directory.mkdir(parents=True)
    save(variables_of(weights), directory / released.checkpoint)
    fields = {name: getattr(config, name) for name in ("vocab_size", *released.defaults)}
    spelling = {ours: theirs for theirs, ours in released.means.items()}
    if "hidden_act" in fields:
        fields["hidden_act"] = spelling.get(config.hidden_act, config.hidden_act)
    (directory / released.config).write_text(json.dumps(fields))
    weights.vocabulary.save(directory)
