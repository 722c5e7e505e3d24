import operator

from torch import fx

from npu_llm.capture.chunks.cycles import in_order, state_cycles


def step_of_two_states():
    """A state that sums what is read, doubled; a second that keeps the first's former value."""
    graph = fx.Graph()
    read, total, former = (graph.placeholder(name) for name in ("read", "total", "former"))
    doubled = graph.call_function(operator.mul, (read, 2))
    summed = graph.call_function(operator.add, (total, doubled))
    kept = graph.call_function(operator.add, (former, total))
    told = graph.call_function(operator.neg, (summed,))
    graph.output((told, summed, kept))
    return graph, {total: summed, former: kept}, {"doubled": doubled, "told": told}


def test_calls_between_a_state_and_its_next_value_are_a_cycle_and_others_are_not():
    graph, following, others = step_of_two_states()
    cycles = state_cycles(graph, following)
    assert {frozenset((state, after)) for state, after in following.items()} == {*cycles.values()}
    assert not {*others.values()} & {*cycles}


def test_states_that_depend_on_each_other_are_one_cycle():
    graph, following, _ = step_of_two_states()
    (total, summed), (former, kept) = following.items()
    summed.replace_input_with(total, former)  # each is now made of the other
    (cycle,) = set(state_cycles(graph, following).values())
    assert cycle == {total, summed, former, kept}


def test_a_state_that_nothing_leads_back_to_has_no_cycle():
    graph, following, others = step_of_two_states()
    total, summed = next(iter(following.items()))
    summed.replace_input_with(total, others["doubled"])
    assert not {total, summed} & set(state_cycles(graph, following))


def test_each_comes_after_what_it_reads_and_a_cycle_as_one():
    graph, following, _ = step_of_two_states()
    cycles = state_cycles(graph, following)
    ordered = in_order(graph.nodes, cycles)
    place = {node: index for index, unit in enumerate(ordered) for node in
             ([unit] if isinstance(unit, fx.Node) else unit)}  # fmt: skip
    assert set(place) == set(graph.nodes)
    assert len(ordered) == len(set(graph.nodes)) - 2
    for node in graph.nodes:
        assert all(place[one] <= place[node] for one in node.all_input_nodes)
